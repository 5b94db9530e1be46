#include "engine/exports.h"

#include "base/error.h"

namespace um {

Exports::Exports(DeviceBase& base, BudgetKeeper& budget, Swapping& swapping) : base_(base) {
  budget.end_exports = [this](uint64_t bytes) {
    device_lock.assert_held();
    static_cast<void>(keep_pages_below(bytes));
  };
  swapping.end_export = [this] {
    device_lock.assert_held();
    return end_oldest(UM_MEMORY_CHUNKED);
  };
}

uint64_t Exports::add(Block* block, uint64_t address) {
  const uint64_t offset_bytes = address - block->address;
  MemoryKind& kind = base_.kind_of(*block);
  if (!kind.can_hold(*block, false))
    throw Error(UM_UNSUPPORTED, "only chunked memory has exports on CUDA: all other stays accessible there");
  kind.hold(block, false);
  ++notes(*block).exports;
  return block->address + offset_bytes;
}

void Exports::add_lasting(Block* block) {
  Notes& its = notes(*block);
  MemoryKind& kind = base_.kind_of(*block);
  if (!kind.can_hold(*block, true)) {
    its.gave_way = true;  // the allocation may move, and its mover must know that code has its address
    return;
  }
  if (its.lasting == 0) {
    kind.hold(block, true);
    ++its.exports;
    its.gave_way = false;
  }
  its.lasting = ++last_lasting_;
}

void Exports::release(Block* block) {
  const Notes& its = notes(*block);
  if (its.exports == (its.lasting != 0 ? 1 : 0)) throw Error(UM_BAD_STATE, "the allocation has no export to release");
  end(block);
}

uint64_t Exports::pinned_page_bytes() const {
  uint64_t bytes = 0;
  base_.allocations->each_arena([&](const Arena& arena) {
    if (arena.heap->placement.memory != UM_MEMORY_MANAGED) return;
    arena.each_block([&](const Block& block) { bytes += notes(block).exports > 0 ? page_bytes(block) : 0; });
  });
  return bytes;
}

bool Exports::keep_pages_below(uint64_t bytes) {
  while (pinned_page_bytes() > bytes) {
    if (!end_oldest(UM_MEMORY_MANAGED)) return false;
  }
  return true;
}

void Exports::end(Block* block) noexcept {
  if (--notes(*block).exports == 0) base_.kind_of(*block).let_go(block);
}

bool Exports::end_oldest(um_memory memory) {
  Block* oldest = nullptr;
  base_.allocations->each_arena([&](const Arena& arena) {
    if (arena.heap->placement.memory != memory) return;
    arena.each_block([&](Block& block) {
      const Notes& its = notes(block);
      if (its.lasting == 0 || its.exports > 1) return;
      if (its.movable != nullptr ? its.movable->pins > 1 : !managed(block)) return;
      if (oldest == nullptr || its.lasting < notes(*oldest).lasting) oldest = &block;
    });
  });
  if (oldest == nullptr) return false;
  // Kernels that were given the address may run in streams that no op used.
  base_.backend.finish_kernels(Wait::export_ended, "waiting for what uses an exported address");
  end(oldest);
  notes(*oldest).lasting = 0;
  notes(*oldest).gave_way = true;
  ++base_.allocations->statistics.exports_ended;
  return true;
}

}  // namespace um
