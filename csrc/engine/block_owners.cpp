#include "engine/block_owners.h"

namespace um {

void BlockOwners::remember(um_owners which) noexcept {
  remembered_ = which;
  if (remembers()) return;
  base_.allocations->each_block([&](Block& block) { forget(&block); });
}

void BlockOwners::forget(Block* block) noexcept {
  if (notes(*block).owner != nullptr) base_.owners.forget(notes(*block).owner);
  notes(*block).owner = nullptr;
}

}  // namespace um
