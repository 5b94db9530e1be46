// Allocations whose storage has been bound to a newer allocation in the same step: one stack for each storage.
//
// A step may run a program's ops several times, for example the body of a loop over a longer sentence. Each round binds
// the same storages to new allocations, and shadows those of the round before. Backward frees the newest round first.
// Each free then binds the storage to the allocation below, so backward finds every round's allocations.
//
// Example: three rounds bind storage 5 to the blocks A, B and C. A and B are shadowed, B on top. When C is freed,
// pop(5) returns B, and storage 5 is bound to B again.
//
// Invariants: a block is shadowed under at most one storage, and is then bound to none. Both maps have the same pairs.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory/arena.h"

namespace um {

class ShadowedBindings {
 public:
  bool empty() const { return storages_.empty(); }
  // Pushes a block whose storage is bound to another one from now on. If memory for that is short, all shadowed
  // bindings are forgotten: plans then no longer know these allocations.
  void add(Block* block, int32_t storage) noexcept;
  void remove(const Block& block) noexcept;
  // Returns the storage that a block is shadowed under; -1: none.
  int32_t storage_of(const Block& block) const;
  // Removes and returns the block that a storage was bound to most recently; nullptr: there is none.
  Block* pop(int32_t storage) noexcept;
  void clear() noexcept;

 private:
  std::unordered_map<const Block*, int32_t> storages_;
  std::unordered_map<int32_t, std::vector<Block*>> blocks_;  // by storage: the newest block is the last one
};

}  // namespace um
