// The one clock of events: CLOCK_MONOTONIC.
#pragma once

#include <time.h>

#include <cstdint>

namespace um {

inline int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

}  // namespace um
