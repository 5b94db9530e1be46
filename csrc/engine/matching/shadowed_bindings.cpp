#include "engine/matching/shadowed_bindings.h"

#include <algorithm>
#include <new>

namespace um {

void ShadowedBindings::add(Block* block, int32_t storage) noexcept {
  try {
    blocks_[storage].push_back(block);
    storages_[block] = storage;
  } catch (const std::bad_alloc&) {
    clear();
  }
}

void ShadowedBindings::remove(const Block& block) noexcept {
  const auto found = storages_.find(&block);
  if (found == storages_.end()) return;
  std::vector<Block*>& blocks = blocks_[found->second];
  blocks.erase(std::remove(blocks.begin(), blocks.end(), &block), blocks.end());
  storages_.erase(found);
}

int32_t ShadowedBindings::storage_of(const Block& block) const {
  const auto found = storages_.find(&block);
  return found != storages_.end() ? found->second : -1;
}

Block* ShadowedBindings::pop(int32_t storage) noexcept {
  const auto found = blocks_.find(storage);
  if (found == blocks_.end() || found->second.empty()) return nullptr;
  Block* const block = found->second.back();
  found->second.pop_back();
  storages_.erase(block);
  return block;
}

void ShadowedBindings::clear() noexcept {
  storages_.clear();
  blocks_.clear();
}

}  // namespace um
