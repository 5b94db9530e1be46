// How the faults of one 2 MiB block come, given how a kernel walks through memory.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "umadvise.h"

namespace um::simulator {

// Pages are of 4 KiB. All mean values over blocks.
struct FaultShape {
  double services;  // of one block
  double batches;   // batches that these cost; less than a service where one batch serves several blocks
  double entries;   // fault entries
  double records;   // copies when the block comes from the host
};

// Shapes of all kernels met so far: each is found by serving blocks page by page with the driver's density prefetcher.
class FaultShapes {
 public:
  explicit FaultShapes(uint32_t batch_max) : batch_max_(batch_max) {}
  // All three positive.
  const FaultShape& of(const um_concurrency& kernel);

 private:
  FaultShape measure(const um_concurrency& kernel) const;

  const uint32_t batch_max_;  // fault entries
  std::map<std::tuple<int32_t, int32_t, int32_t>, FaultShape> known_;
};

}  // namespace um::simulator
