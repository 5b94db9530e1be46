// What any simulation gives, behind the C ABI's handle.
#pragma once

#include <vector>

#include "umadvise.h"

struct um_simulation {
  std::vector<um_simulated_step> steps;
  std::vector<um_span> spans;
  std::vector<uint64_t> addresses;  // by storage; of unified memory
};
