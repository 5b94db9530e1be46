// How much managed memory the process has of CUDA's drivers. They promise any amount, and a host that pages it all back
// in stalls: machines have been lost that way. One sum for all devices, as they share the host; memory that nobody has
// touched yet counts, which what is free now does not show.
#pragma once

#include <cstdint>

namespace um::managed_cap {

// The most at once, of whatever a device had free at its opening; 0: no less than that.
void set(uint64_t most_bytes);
// What is left below it. `free_at_opening_bytes`: of the host and of the device that asks.
uint64_t left(uint64_t free_at_opening_bytes);
void add(uint64_t bytes);
void subtract(uint64_t bytes) noexcept;

}  // namespace um::managed_cap
