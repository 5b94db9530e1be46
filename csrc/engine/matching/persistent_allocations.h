// Allocations that are the same ones in every step, such as parameters and the optimizer's state: by these, ops of
// different programs and steps are told. Not thread-safe: the device's lock is held.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "memory/allocations.h"

namespace um {

class PersistentAllocations {
 public:
  // From now on until it is freed.
  void add(Block* block) {
    blocks_[block->record.serial] = block;
    block->record.persistent = true;
  }
  void freed(Block* block) noexcept {
    if (block->record.persistent) blocks_.erase(block->record.serial);
    block->record.persistent = false;
  }
  // nullptr: it is none, or has been freed.
  Block* find(uint64_t serial) const {
    const auto found = blocks_.find(serial);
    return found != blocks_.end() ? found->second : nullptr;
  }
  void clear() noexcept {
    for (const auto& each : blocks_) each.second->record.persistent = false;
    blocks_.clear();
  }

 private:
  std::unordered_map<uint64_t, Block*> blocks_;
};

}  // namespace um
