// Copies data into and out of a device outside of ops. Each function takes the device's lock, and throws um::Error.
// This file also declares how accesses that no op announced are served (stray_access.cpp): on a device whose memory the
// CPU may use, they count against the budget, and swap in chunked memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "memory/backend.h"
#include "umadvise_waits.h"

namespace um {

void copy_from_host(void* device_address, const void* host, uint64_t bytes);
void copy_to_host(void* host, const void* device_address, uint64_t bytes);
void prefetch(const void* address, uint64_t bytes, bool to_host, void* stream);

// Waits for a GPU's kernels: the legacy stream, in which copies run, is not ordered after the streams of kernels.
void finish_kernels(const Backend& backend, Wait name, const std::string& doing);

// Makes an access possible (`driver::AccessOwner`).
bool serve_stray_access(uint64_t address, bool write) noexcept;
// Describes the memory and the op of a fatal access in a few words (`driver::AccessDescriber`).
void tell_stray_access(uint64_t address, char* text, size_t bytes) noexcept;

}  // namespace um
