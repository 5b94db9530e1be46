// The functions given to torch's CUDA allocator: see cuda_allocator.cpp.
#pragma once

namespace um::hooks {

// Whether the routes mean a CUDA device now. The CPU allocator then routes nothing.
bool serves_cuda();

}  // namespace um::hooks
