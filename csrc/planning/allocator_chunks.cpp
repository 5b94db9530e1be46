#include <algorithm>

#include "planning/allocator_models.h"

namespace um::simulator {

namespace {

// Handles of blocks with chunks of their own are their number of chunks with this bit; others index the list.
constexpr int64_t kOwnChunks = int64_t{1} << 62;

}  // namespace

ChunkAllocator::ChunkAllocator(uint64_t budget_bytes, uint64_t chunk_bytes)
    : chunk_bytes_(chunk_bytes), total_chunks_(budget_bytes / chunk_bytes) {}

int64_t ChunkAllocator::allocate(uint64_t bytes) {
  if (bytes > chunk_bytes_ / 2) {
    const uint64_t count = (bytes + chunk_bytes_ - 1) / chunk_bytes_;
    return take_chunks(count) ? kOwnChunks | static_cast<int64_t>(count) : kNoRoom;
  }
  bytes = (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  int32_t block = blocks_.take(free_, bytes);
  if (block == BlockList::kNone) {
    if (!take_chunks(1)) return kNoRoom;
    blocks_.add(free_, next_address_, chunk_bytes_, 0);
    next_address_ += chunk_bytes_;
    block = blocks_.take(free_, bytes);
  }
  if (blocks_[block].bytes > bytes) blocks_.cut(free_, block, bytes);
  return block;
}

void ChunkAllocator::free(int64_t block) {
  if ((block & kOwnChunks) != 0) return give_chunks(static_cast<uint64_t>(block ^ kOwnChunks));
  const int32_t joined = blocks_.give(free_, static_cast<int32_t>(block));
  if (!blocks_.fills_segment(joined)) return;
  blocks_.remove(free_, joined);
  give_chunks(1);
}

bool ChunkAllocator::take_chunks(uint64_t count) {
  if (count > total_chunks_ - used_chunks_) return false;
  auto kept = cached_.upper_bound(count);  // the largest mapping that is not too large
  uint64_t mapped = 0;
  if (kept != cached_.begin()) {
    --kept;
    mapped = kept->first;
    if (--kept->second == 0) cached_.erase(kept);
    cached_chunks_ -= mapped;
  }
  const uint64_t unmapped = total_chunks_ - used_chunks_ - cached_chunks_ - mapped;
  if (count - mapped > unmapped) unmap(count - mapped - unmapped);
  used_chunks_ += count;
  chunks_mapped_ += count - mapped;
  return true;
}

void ChunkAllocator::give_chunks(uint64_t count) {
  used_chunks_ -= count;
  cached_chunks_ += count;
  ++cached_[count];
}

// Takes chunks away from the largest mappings that are kept.
void ChunkAllocator::unmap(uint64_t count) {
  while (count > 0) {
    const auto largest = std::prev(cached_.end());
    const uint64_t mapped = largest->first, taken = std::min(count, mapped);
    if (--largest->second == 0) cached_.erase(largest);
    if (mapped > taken) ++cached_[mapped - taken];
    cached_chunks_ -= taken;
    count -= taken;
  }
}

}  // namespace um::simulator
