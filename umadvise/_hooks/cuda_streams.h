// Finds the stream to which torch gives a thread's CUDA kernels.
#pragma once

#include <cstdint>

namespace um::hooks {

// Returns the driver's handle; nullptr: the legacy stream. Throws CoreError if torch does not report it.
void* current_cuda_stream(int32_t ordinal);

}  // namespace um::hooks
