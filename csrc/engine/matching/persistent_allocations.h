// The live allocations that are the same ones in every step, such as parameters and optimizer state. An op's signature
// contains the serial number of its first persistent operand (program.h), so these tell equal layers apart.
//
// Invariants: an allocation is in the set if and only if its Record::persistent is true. Owners call freed() before a
// block is freed, so the set has no dangling pointers.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "memory/allocations.h"

namespace um {

class PersistentAllocations {
 public:
  // Adds a live allocation. It remains in the set until freed() or clear().
  void add(Block* block) {
    blocks_[block->record.serial] = block;
    block->record.persistent = true;
  }
  void freed(Block* block) noexcept {
    if (block->record.persistent) blocks_.erase(block->record.serial);
    block->record.persistent = false;
  }
  // Returns nullptr if the allocation is not persistent or has been freed.
  Block* find(uint64_t serial) const {
    const auto found = blocks_.find(serial);
    return found != blocks_.end() ? found->second : nullptr;
  }
  void clear() noexcept {
    for (const auto& each : blocks_) each.second->record.persistent = false;
    blocks_.clear();
  }

 private:
  std::unordered_map<uint64_t, Block*> blocks_;  // by serial number
};

}  // namespace um
