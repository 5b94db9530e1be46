// Copies, prefetches and uses of memory outside of ops. Each function takes the device's lock, and throws um::Error.
#pragma once

#include <cstdint>

namespace um {

void copy_from_host(void* device_address, const void* host, uint64_t bytes);
void copy_to_host(void* host, const void* device_address, uint64_t bytes);
// Notes that the allocation is also used in this stream until it is freed or evicted.
void lend(const void* address, void* stream);
void prefetch(const void* address, uint64_t bytes, bool to_host, void* stream);

}  // namespace um
