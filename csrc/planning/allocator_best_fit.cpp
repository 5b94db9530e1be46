#include "planning/allocator_models.h"

namespace um::simulator {

BestFitAllocator::BestFitAllocator(uint64_t budget_bytes)
    : pool_bytes_(budget_bytes / kAlignmentBytes * kAlignmentBytes) {
  if (pool_bytes_ > 0) last_ = blocks_.add(free_, 0, pool_bytes_, 0);
}

int64_t BestFitAllocator::allocate(uint64_t bytes) {
  bytes = (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  int32_t block = blocks_.take(free_, bytes);
  if (block == BlockList::kNone) return kNoRoom;
  if (block == last_) {  // the end of the pool only where no hole is large enough
    const int32_t hole = blocks_.take(free_, bytes);
    if (hole != BlockList::kNone) {
      blocks_.give(free_, block);
      block = hole;
    }
  }
  if (blocks_[block].bytes > bytes) {
    blocks_.cut(free_, block, bytes);
    if (block == last_) last_ = blocks_[block].next;
  }
  return block;
}

void BestFitAllocator::free(int64_t block) {
  const int32_t joined = blocks_.give(free_, static_cast<int32_t>(block));
  if (blocks_[joined].next == BlockList::kNone) last_ = joined;
}

uint64_t BestFitAllocator::reserved_bytes() const {
  if (last_ == BlockList::kNone) return 0;
  const Block& last = blocks_[last_];
  return last.is_free ? last.address : last.address + last.bytes;
}

}  // namespace um::simulator
