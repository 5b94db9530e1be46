// The functions given to torch's CUDA allocator (cuda_allocator.cpp).
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace um::hooks {

// Returns whether routes lead to a CUDA device now. The CPU allocator then routes nothing.
bool serves_cuda();

// Sets the stream to which the core orders this thread's ops: torch's current stream on the served device, else none.
// Throws CoreError.
void announce_stream();

// Called before memory of torch's CUDA allocator, with the deleter `torchs`, moves: from now on our own deleter frees
// it. The device's lock is held. Returns false if that is impossible.
bool take_over(void* block, c10::DeleterFnPtr torchs) noexcept;
// Called after it has moved, with the lock held.
void note_move(const void* from, const void* to) noexcept;
// Frees memory that has moved.
void free_moved(void* block);

}  // namespace um::hooks
