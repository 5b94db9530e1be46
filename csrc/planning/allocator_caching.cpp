#include "planning/allocator_models.h"

namespace um::simulator {

namespace {

uint64_t rounded_up(uint64_t bytes, uint64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

}  // namespace

int64_t CachingAllocator::allocate(uint64_t bytes) {
  bytes = rounded_up(bytes, kMinBlockBytes);
  const Pool pool = bytes <= kSmallBytes ? kSmall : kLarge;
  int32_t block = blocks_.take(free_[pool], bytes);
  if (block == BlockList::kNone) {
    if (!add_segment(pool, bytes)) {
      if (blocks_.free_segments() == 0) return kNoRoom;
      release_free_segments();
      if (!add_segment(pool, bytes)) return kNoRoom;
    }
    block = blocks_.take(free_[pool], bytes);
  }
  const uint64_t rest_bytes = blocks_[block].bytes - bytes;
  if (pool == kSmall ? rest_bytes >= kMinBlockBytes : rest_bytes > kSmallBytes) blocks_.cut(free_[pool], block, bytes);
  return block;
}

void CachingAllocator::free(int64_t block) {
  const auto index = static_cast<int32_t>(block);
  blocks_.give(free_[blocks_[index].pool], index);
}

bool CachingAllocator::add_segment(Pool pool, uint64_t block_bytes) {
  const uint64_t bytes = pool == kSmall                      ? kSmallSegmentBytes
                         : block_bytes < kMinOwnSegmentBytes ? kLargeSegmentBytes
                                                             : rounded_up(block_bytes, kRoundSegmentBytes);
  if (bytes > budget_bytes_ - segment_bytes_) return false;
  segment_bytes_ += bytes;
  blocks_.add(free_[pool], next_address_, bytes, pool);
  next_address_ += bytes;
  return true;
}

void CachingAllocator::release_free_segments() {
  for (FreeBlocks& free : free_) {
    for (auto entry = free.begin(); entry != free.end();) {
      const int32_t block = (entry++)->block;  // before the entry goes
      if (!blocks_.fills_segment(block)) continue;
      segment_bytes_ -= blocks_[block].bytes;
      blocks_.remove(free, block);
    }
  }
}

}  // namespace um::simulator
