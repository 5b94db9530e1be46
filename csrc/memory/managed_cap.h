// How much managed memory the process has allocated from CUDA's drivers. The drivers promise any amount, and a host
// that pages all of it stalls until it is unusable. There is one sum for all devices, because they share the host. It
// counts memory that was never touched, which still shows as free.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace um::managed_cap {

// The limit on all managed memory; 0: the memory that was free when the device was opened, which is the upper bound.
inline std::atomic<uint64_t> most_bytes{0};
inline std::atomic<uint64_t> held_bytes{0};

// Returns what is left below the limit. `free_at_opening_bytes`: of the host and of the calling device.
inline uint64_t left(uint64_t free_at_opening_bytes) {
  const uint64_t set = most_bytes, held = held_bytes;
  const uint64_t most = set != 0 ? std::min(set, free_at_opening_bytes) : free_at_opening_bytes;
  return most - std::min(most, held);
}

}  // namespace um::managed_cap
