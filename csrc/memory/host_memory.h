// The host's memory, where managed memory goes that does not fit the device.
#pragma once

#include <cstdint>
#include <string>

namespace um {

// MemAvailable of /proc/meminfo: what the kernel can give without swapping; without /proc what is free. Throws
// um::Error. So many processes of one training divide the host among them: what follows is this one's part.
void share_host(uint32_t processes);
uint64_t available_host_bytes();
uint64_t total_host_bytes();
// All but a tenth of what is available, and but 1 GiB at least.
uint64_t spare_host_bytes(uint64_t available_bytes);

// "1536 MiB (1610612736 bytes)": for messages.
std::string in_words(uint64_t bytes);

}  // namespace um
