// Allocations of a step that others have followed in their places: where a program's ops come again within a step, as a
// longer sentence's do, each round makes what the last one made. A backward uses them in the other order: when the one
// on top is freed, the one below is the next. Not thread-safe: the device's lock is held.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory/arena.h"

namespace um {

class ShadowedBindings {
 public:
  bool empty() const { return storages_.empty(); }
  // It was this storage until another one took its place. Without memory for that it is forgotten.
  void add(Block* block, int32_t storage) noexcept;
  void remove(const Block& block) noexcept;
  // -1: it is none.
  int32_t storage_of(const Block& block) const;
  // The last one of a storage, which is none any more; nullptr: there is none.
  Block* pop(int32_t storage) noexcept;
  void clear() noexcept;

 private:
  std::unordered_map<const Block*, int32_t> storages_;
  std::unordered_map<int32_t, std::vector<Block*>> blocks_;  // of a storage, the last one at the end
};

}  // namespace um
