// Random numbers of a GPU: as there, a launch takes the seed and the offset of torch's CUDA generator, and moves the
// offset on. So torch.cuda.manual_seed, get_rng_state, fork_rng and checkpoints mean what they mean on a GPU, and when
// the kernel runs changes nothing.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

namespace cuda_kernels {

// The CPU's generator for one launch. `given`: the op's argument, None for the device's default.
at::Generator generator_for_launch(const c10::IValue& given, c10::Device device);

}  // namespace cuda_kernels
