// Data in and out of a device, other than by ops: the lock of the device whose memory it is is taken, and all throw
// um::Error. And accesses that no op announced, as a device catches them whose memory the CPU may use
// (stray_access.cpp): they count against the budget, and swap in chunked memory.
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

// A GPU's kernels run in streams of which the legacy one, where copies are, knows nothing.
void finish_kernels(const Backend& backend, Wait name, const std::string& doing);

// Makes one possible; emulated::Owner.
bool serve_stray_access(uint64_t address, bool write) noexcept;
// Whose memory a fatal one was to and which op runs, in a few words; emulated::Describer.
void tell_stray_access(uint64_t address, char* text, size_t bytes) noexcept;

}  // namespace um
