// The owners of allocations that are no Movable: the storages that show their addresses. They are remembered on
// request, so that a conversion can re-point them (engine/conversion.h).
#pragma once

#include "engine/device_base.h"
#include "engine/notes.h"
#include "umadvise.h"

namespace um {

class BlockOwners {
 public:
  explicit BlockOwners(DeviceBase& base) : base_(base) {}

  // Sets whether owners are remembered.
  void remember(um_owners which) noexcept {
    remembered_ = which;
    if (!remembers()) base_.allocations->each_block([&](Block& block) { forget(&block); });
  }
  bool remembers() const { return remembered_ != UM_OWNERS_FORGOTTEN; }
  bool converts_in_ops() const { return remembered_ == UM_OWNERS_CONVERTED_IN_OPS; }
  // Notes the storage that shows the allocation's address.
  void meet(Block* block, void* storage) {
    Notes& its = notes(*block);
    if (remembers() && its.owner == nullptr && storage != nullptr)
      its.owner = base_.owners.remember(storage, block->address);
  }
  void forget(Block* block) noexcept {
    if (notes(*block).owner != nullptr) base_.owners.forget(notes(*block).owner);
    notes(*block).owner = nullptr;
  }

 private:
  DeviceBase& base_;
  um_owners remembered_ = UM_OWNERS_FORGOTTEN;
};

}  // namespace um
