// Finds the tangent that forward-mode differentiation keeps with a tensor. Ops read and make it without having it as an
// argument.
#pragma once

#include <c10/core/TensorImpl.h>

namespace um::hooks {

// Returns nullptr if there is none. It lives as long as the tensor has it.
const c10::TensorImpl* tangent_of(const c10::TensorImpl& tensor);

}  // namespace um::hooks
