// The functions given to torch's CUDA allocator: see cuda_allocator.cpp.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace um::hooks {

// Whether the routes mean a CUDA device now. The CPU allocator then routes nothing.
bool serves_cuda();

// Tells the core which stream this thread's ops are given to: on the device that is served torch's current one, else
// none but the calling thread itself. Throws CoreError.
void announce_stream();

// Memory that torch's CUDA allocator gave out, of which `torchs` is the deleter, is about to move: from now on our own
// deleter is to free it. Called with the device's lock held. False: it cannot be.
bool take_over(void* block, c10::DeleterFnPtr torchs) noexcept;
// It has moved; with the lock held.
void note_move(const void* from, const void* to) noexcept;
// The deleter of such memory.
void free_moved(void* block);

}  // namespace um::hooks
