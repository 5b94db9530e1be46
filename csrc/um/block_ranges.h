// Which of a device's blocks are allocated: first fit in ascending order, so that equal calls give equal addresses on
// every device. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>

#include "um/model.h"

namespace um {

class BlockRanges {
 public:
  explicit BlockRanges(uint32_t blocks) : blocks_(blocks) {}

  // The first place for that many blocks, Model::kNone when there is none.
  uint32_t find_room(uint32_t count) const {
    uint32_t first = 0;
    for (const auto& [start, taken] : ranges_) {
      if (start - first >= count) return first;
      first = start + taken;
    }
    return blocks_ - first >= count ? first : Model::kNone;
  }
  void take(uint32_t first, uint32_t count) { ranges_.emplace(first, count); }
  void give(uint32_t first) { ranges_.erase(first); }
  // Blocks of the range that starts there, 0 when none does.
  uint32_t count_at(uint32_t first) const {
    const auto found = ranges_.find(first);
    return found == ranges_.end() ? 0 : found->second;
  }
  bool empty() const { return ranges_.empty(); }
  uint32_t first() const { return ranges_.begin()->first; }

 private:
  const uint32_t blocks_;
  std::map<uint32_t, uint32_t> ranges_;  // first block -> count
};

// Calls each(index, address, bytes) for the part of a range in every block, in ascending address. `base` is the address
// of block 0.
template <class Each>
void each_block_of(uint64_t base, uint64_t address, uint64_t bytes, const Each& each) {
  const uint64_t end = address + bytes;
  while (address < end) {
    const uint64_t index = (address - base) / kBlockBytes;
    const uint64_t block_end = base + (index + 1) * kBlockBytes;
    const uint64_t piece_end = end < block_end ? end : block_end;
    each(static_cast<uint32_t>(index), address, piece_end - address);
    address = piece_end;
  }
}

}  // namespace um
