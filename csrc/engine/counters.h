// Fills um_counters from a model's counters, and treats it as an array of numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "um/model.h"
#include "umadvise.h"

namespace um {

inline constexpr size_t kCounters = sizeof(um_counters) / sizeof(int64_t);

inline void forget(um_counters* counters) {
  std::fill_n(reinterpret_cast<int64_t*>(counters), kCounters, int64_t{UM_UNKNOWN});
}
inline void forget(um_spent_time* times) {
  std::fill_n(reinterpret_cast<int64_t*>(times), size_t{UM_TIME_COUNT}, int64_t{UM_UNKNOWN});
}

inline void fill(const Counters& from, um_counters* out) {
  out->fault_groups = from.fault_groups;
  out->first_touches = from.first_touches;
  std::copy_n(from.bytes_h2d, kCauses, out->bytes_h2d);
  std::copy_n(from.bytes_d2h, kCauses, out->bytes_d2h);
  out->evictions = from.evictions;
  out->evictions_dropped = from.evictions_dropped;
  out->collapses = from.collapses;
  out->remote_maps = from.remote_maps;
}

}  // namespace um
