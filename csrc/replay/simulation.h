// What any simulation gives, behind the C ABI's handle.
#pragma once

#include <vector>

#include "umadvise.h"

struct um_simulation {
  std::vector<um_simulated_step> steps;
  std::vector<um_span> spans;
  std::vector<uint64_t> addresses;  // by storage; of unified memory
  std::vector<um_gpu_step> gpu_steps;
  std::vector<um_call_count> calls;  // of a GPU, without those of warm-up
};
