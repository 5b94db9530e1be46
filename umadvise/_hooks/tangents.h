// What forward-mode differentiation keeps with a tensor: ops read and make it without being given it.
#pragma once

#include <c10/core/TensorImpl.h>

namespace um::hooks {

// nullptr where there is none. It lives as long as the tensor has it.
const c10::TensorImpl* tangent_of(const c10::TensorImpl& tensor);

}  // namespace um::hooks
