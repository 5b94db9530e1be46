// Managed memory of one placement as torch's caching allocator gives it out: for programs that have nothing of umadvise
// but put managed memory under that allocator. Segments never go back, so that freed memory keeps its pages.
#pragma once

#include <limits>
#include <vector>

#include "engine/device.h"
#include "planning/allocator_models.h"

namespace um::simulator {

class CachingHeap {
 public:
  // Advice is set on whole segments; a prefetch at creation is the caller's to make.
  CachingHeap(um_device& device, um_placement placement);
  ~CachingHeap();
  CachingHeap(const CachingHeap&) = delete;
  CachingHeap& operator=(const CachingHeap&) = delete;

  struct Piece {
    uint64_t address;
    int64_t handle;
  };
  // At least one byte. Throws um::Error.
  Piece allocate(uint64_t bytes);
  void free(int64_t handle) { allocator_.free(handle); }

 private:
  struct Segment {
    uint64_t first;  // in the allocator's own addresses
    uint64_t address;
  };
  um_device& device_;
  um_placement placement_;
  CachingAllocator allocator_{std::numeric_limits<uint64_t>::max()};
  std::vector<Segment> segments_;  // by first
};

}  // namespace um::simulator
