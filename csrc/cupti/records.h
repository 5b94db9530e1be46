// From a buffer of CUPTI's to the records of unified memory in it.
#pragma once

#include <cstdint>
#include <vector>

#include "cupti/library.h"

namespace um::cupti {

// One record, with what all versions of its layout have.
struct Sample {
  int64_t start_ns, end_ns;  // CLOCK_MONOTONIC; 0 where the time is not known
  uint64_t address, value;   // what a value is depends on the kind (cupti_activity.h)
  CUpti_ActivityUnifiedMemoryCounterKind kind;
  uint32_t flags;  // an access type, a cause of migration or a cause of a remote mapping, by kind
};

struct Batch {
  std::vector<Sample> samples;  // with CUPTI's times
  int64_t ignored = 0;          // records of other kinds or other processes, and counters that nobody here knows
  bool whole = true;            // false: the buffer could not be read to its end
};

// Reads the first `valid_bytes` of a buffer. Whatever they hold, nothing outside of them is read.
Batch read_buffer(const Library& library, uint8_t* buffer, size_t valid_bytes);

}  // namespace um::cupti
