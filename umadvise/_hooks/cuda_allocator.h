// The functions given to torch's CUDA allocator: see cuda_allocator.cpp.
#pragma once

#include <cstdint>

namespace um::hooks {

// Whether the routes mean a CUDA device now. The CPU allocator then routes nothing.
bool serves_cuda();

// Tells the core which stream this thread's ops are given to: on the device that is served torch's current one, else
// none but the calling thread itself. Throws CoreError.
void announce_stream();

}  // namespace um::hooks
