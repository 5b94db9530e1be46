// Counters of a device's live allocations, with their peaks.
#pragma once

#include <cstdint>

#include "umadvise.h"

namespace um {

struct Level {
  uint64_t now = 0, peak = 0;

  void set(uint64_t value) {
    now = value;
    if (now > peak) peak = now;
  }
  void add(uint64_t value) { set(now + value); }
  void subtract(uint64_t value) { now -= value; }
  void reset_peak() { peak = now; }
  void tell(uint64_t* level, uint64_t* peak_level, uint64_t unit = 1) const {
    *level = now * unit;
    *peak_level = peak * unit;
  }
};

struct Statistics {
  Level requested_bytes;
  Level reserved_bytes;
  Level by_role[UM_ROLE_COUNT];  // requested bytes, by current role
  // Bytes of all allocations that were ever made, by the last role of each.
  uint64_t placed_bytes[UM_ROLE_COUNT][UM_MEMORY_CHUNKED + 1][UM_ADVICE_COUNT] = {};
  uint64_t reserved_by_role[UM_ROLE_COUNT] = {};  // bytes of arenas
  Level live;                                     // number of allocations
  uint64_t allocation_count = 0, free_count = 0;
  uint64_t requested_total_bytes = 0;  // of all allocations that were ever made
  uint64_t failure_count = 0;          // requests that failed for lack of memory
  uint64_t exports_ended = 0;          // because memory ran out

  uint64_t live_allocations() const { return live.now; }
};

}  // namespace um
