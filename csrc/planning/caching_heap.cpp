#include "planning/caching_heap.h"

#include <algorithm>

#include "base/error.h"

namespace um::simulator {

CachingHeap::CachingHeap(um_device& device, um_placement placement) : device_(device), placement_(placement) {
  if (placement_.advice == UM_ADVICE_PREFETCH) placement_.advice = UM_ADVICE_NONE;
}

CachingHeap::~CachingHeap() {
  for (const Segment& segment : segments_) um_device::free(reinterpret_cast<void*>(segment.address));
}

CachingHeap::Piece CachingHeap::allocate(uint64_t bytes) {
  const uint64_t before = allocator_.reserved_bytes();
  const int64_t handle = allocator_.allocate(bytes);
  if (handle == Allocator::kNoRoom) throw Error(UM_OUT_OF_HOST_MEMORY, "no segment can be that large");
  const uint64_t added = allocator_.reserved_bytes() - before;
  if (added > 0) {
    segments_.reserve(segments_.size() + 1);
    void* segment = device_.allocate(added, placement_, nullptr);
    segments_.push_back({before, reinterpret_cast<uint64_t>(segment)});
  }
  const uint64_t at = allocator_.address(handle);
  const auto above = std::upper_bound(segments_.begin(), segments_.end(), at,
                                      [](uint64_t value, const Segment& segment) { return value < segment.first; });
  const Segment& segment = *std::prev(above);
  return {segment.address + (at - segment.first), handle};
}

}  // namespace um::simulator
