// How much managed memory the process has of CUDA's drivers. They promise any amount, and a host that pages it all back
// in stalls: machines have been lost that way. One sum for all devices, as they share the host; memory that nobody has
// touched yet counts, which what is free now does not show.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace um::managed_cap {

// The most at once, of whatever a device had free at its opening; 0: no less than that.
inline std::atomic<uint64_t> most_bytes{0};
inline std::atomic<uint64_t> held_bytes{0};

// What is left below the most. `free_at_opening_bytes`: of the host and of the device that asks.
inline uint64_t left(uint64_t free_at_opening_bytes) {
  const uint64_t set = most_bytes, held = held_bytes;
  const uint64_t most = set != 0 ? std::min(set, free_at_opening_bytes) : free_at_opening_bytes;
  return most - std::min(most, held);
}

}  // namespace um::managed_cap
