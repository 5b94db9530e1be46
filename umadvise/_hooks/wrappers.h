// Finds the components of tensors that are Python objects made of other tensors, such as DTensors.
#pragma once

#include <c10/core/TensorImpl.h>

#include <vector>

namespace um::hooks {

// Returns the components of a wrapper, which live as long as it does; none before um_hooks_parts_set.
std::vector<const c10::TensorImpl*> parts_of(const c10::TensorImpl& wrapper);

}  // namespace um::hooks
