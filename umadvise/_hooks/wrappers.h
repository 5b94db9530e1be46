// Tensors that are Python objects made of other tensors, as DTensors are.
#pragma once

#include <c10/core/TensorImpl.h>

#include <vector>

namespace um::hooks {

// What one is made of, which lives as long as it does. Nothing where nobody has said who knows it.
std::vector<const c10::TensorImpl*> parts_of(const c10::TensorImpl& wrapper);

}  // namespace um::hooks
