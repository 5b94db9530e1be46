// The CPU allocator that routes: see allocator.cpp.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace um::hooks {

// How many allocations this thread has been given, of either allocator.
inline thread_local uint64_t allocations_made = 0;

// Installed once; throws CoreError when torch's present allocator cannot be built upon.
void install_allocator();

// Memory of ours as a storage holds it, and ordinary CPU memory; the allocator must be installed.
c10::DataPtr owned_data(void* address);
c10::DataPtr ordinary_data(size_t bytes);

// What storages with such data must name as their allocator.
c10::Allocator* installed_allocator();

}  // namespace um::hooks
