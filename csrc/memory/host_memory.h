// The host's memory, into which managed memory is paged that does not fit the device.
#pragma once

#include <cstdint>
#include <string>

namespace um {

// The functions below report this process's share of the host's memory. share_host() sets how many processes of one
// training share it. Available is MemAvailable of /proc/meminfo, which the kernel can give without swapping, or the
// free memory if there is no /proc. They throw um::Error.
void share_host(uint32_t processes);
uint64_t available_host_bytes();
uint64_t total_host_bytes();
// Returns what may be taken by default: all available bytes except a tenth of them, or 1 GiB if that is more.
uint64_t default_host_bytes(uint64_t available_bytes);

// Returns text for messages, such as "1536 MiB (1610612736 bytes)".
std::string in_words(uint64_t bytes);

}  // namespace um
