#include "engine/use_order.h"

#include "base/assert.h"

namespace um {

void UseOrder::use(Movable* block) noexcept {
  remove(block);
  block->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = block;
  newest_ = block;
}

void UseOrder::remove(Movable* block) noexcept {
  UM_ASSERT(!block->state.evicted_first() || first_victims_ > 0);
  if (block->state.evicted_first()) --first_victims_;
  block->state.change(Change::use);
  if (block->older == nullptr && oldest_ != block) return;
  (block->older != nullptr ? block->older->newer : oldest_) = block->newer;
  (block->newer != nullptr ? block->newer->older : newest_) = block->older;
  block->older = block->newer = nullptr;
}

void UseOrder::evict_first(Movable* block) noexcept {
  UM_ASSERT(block->older != nullptr || oldest_ == block);
  block->state.change(Change::evict_first);
  ++first_victims_;
}

Movable* UseOrder::first_victim() const {
  for (Movable* each = first_victims_ > 0 ? oldest_ : nullptr; each != nullptr; each = each->newer) {
    if (each->state.evicted_first() && each->may_leave()) return each;
  }
  return nullptr;
}

Movable* UseOrder::victim(int64_t later_than) const {
  Movable* chosen = nullptr;
  int64_t furthest = later_than;
  for (Movable* each = oldest_; each != nullptr; each = each->newer) {
    if (!each->may_leave()) continue;
    if (outlook == nullptr) return each;
    const int64_t next_use = outlook->next_use(*each->block);
    if (next_use <= furthest) continue;
    chosen = each;
    furthest = next_use;
  }
  return chosen;
}

bool UseOrder::let_go_of_reach() noexcept {
  bool any = false;
  for (Movable* each = oldest_; each != nullptr; each = each->newer) {
    if (each->owner == nullptr) continue;
    any |= each->state.barred();
    each->state.change(Change::admit);
  }
  return any;
}

}  // namespace um
