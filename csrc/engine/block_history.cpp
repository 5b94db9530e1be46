#include "engine/block_history.h"

#include <algorithm>
#include <new>

namespace um {

void BlockHistory::clear() noexcept {
  lives_.clear();
  pages_.clear();
}

void BlockHistory::freed(const Block& block, uint32_t last_op) noexcept {
  if (lives_.size() == kMostLives) return;
  try {
    const uint32_t index = static_cast<uint32_t>(lives_.size());
    lives_.push_back({block.address, block.end(), last_op, block.record});
    for (uint64_t page = block.address / kBlockBytes; page <= (block.end() - 1) / kBlockBytes; ++page) {
      pages_[page].push_back(index);
    }
  } catch (const std::bad_alloc&) {
    return;  // the pages that are not entered do not know this life
  }
}

// Lives at one address do not overlap, so the first that had not ended by then is the right one.
const BlockHistory::Life* BlockHistory::containing(uint64_t address, uint32_t op) const {
  const auto page = pages_.find(address / kBlockBytes);
  if (page == pages_.end()) return nullptr;
  for (const uint32_t index : page->second) {
    const Life& life = lives_[index];
    if (life.last_op >= op && life.address <= address && address < life.end) return &life;
  }
  return nullptr;
}

const BlockHistory::Life* BlockHistory::nearest(uint64_t address, uint32_t op) const {
  const auto page = pages_.find(address / kBlockBytes);
  if (page == pages_.end()) return nullptr;
  const Life* closest = nullptr;
  for (const uint32_t index : page->second) {
    const Life& life = lives_[index];
    const bool better = closest == nullptr || life.address < closest->address;
    if (life.last_op >= op && life.address > address && better) closest = &life;
  }
  return closest;
}

}  // namespace um
