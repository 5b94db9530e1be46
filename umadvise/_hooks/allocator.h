// The CPU allocator that routes (allocator.cpp).
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace um::hooks {

// How many allocations either allocator has given this thread.
inline thread_local uint64_t allocations_made = 0;

// Installs the allocator once. Throws CoreError if torch's present allocator cannot be wrapped.
void install_allocator();

// Return our memory as a storage holds it, and ordinary CPU memory. The allocator must be installed.
c10::DataPtr owned_data(void* address);
c10::DataPtr ordinary_data(size_t bytes);

// Returns the allocator that storages with such data must name.
c10::Allocator* installed_allocator();

}  // namespace um::hooks
