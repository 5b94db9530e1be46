// The stream that torch gives a thread's CUDA kernels to.
#pragma once

#include <cstdint>

namespace um::hooks {

// As the driver knows it; nullptr is the legacy one. Throws CoreError when torch does not tell.
void* current_cuda_stream(int32_t ordinal);

}  // namespace um::hooks
