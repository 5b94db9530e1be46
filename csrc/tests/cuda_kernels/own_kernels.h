// Ops that torch has on CUDA alone, or whose kernel for the CPU takes what a GPU's does not: made of other ops, which
// are launched one by one.
#pragma once

#include <ATen/core/operator_name.h>
#include <torch/library.h>

namespace cuda_kernels {

// How many there are.
int register_own_kernels(torch::Library& library);
bool own_kernel(const c10::OperatorName& name);

}  // namespace cuda_kernels
