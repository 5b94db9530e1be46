// The link of the simulated devices that tests work out by hand.
#pragma once

#include "umadvise.h"

namespace test {

inline um_link link() {
  um_link made{};
  for (const int direction : {0, 1}) {
    made.fixed_ns[direction] = 1000;
    made.bytes_per_s[direction] = made.both_bytes_per_s[direction] = 1e9;  // a byte takes a nanosecond
    made.engines[direction] = 1;
  }
  return made;
}

}  // namespace test
