// The kernel of every op that torch has a kernel for on CUDA and one on the CPU: the CPU's, on the GPU's bytes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace cuda_kernels {

// Lies at the key CUDA itself, so that everything above it (autograd, autocast, modes, torch's allocator) is what it is
// on a GPU. It gives the work to the current stream and returns, as a launch does, wherever a dry run on the device
// "meta" tells what the op gives. Ops whose result only computing tells (nonzero) wait for the stream first; a GPU's do
// too.
void boxed_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The ops that have waited for a stream so far, by commas.
std::string waited();

}  // namespace cuda_kernels
