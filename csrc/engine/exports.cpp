#include "engine/exports.h"

#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"

namespace um {
namespace {

uint64_t page_bytes(const Block& block) { return Budget::spanned_bytes(block.address, block.end() - block.address); }

}  // namespace

Exports::Exports(DeviceBase& base, BudgetKeeper& budget, Accounts& accounts, Swapping& swapping)
    : base_(base), budget_(budget), accounts_(accounts), swapping_(swapping) {
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
  hold(block, false);
  ++notes(*block).exports;
  return block->address + offset_bytes;
}

void Exports::add_lasting(Block* block) {
  Notes& its = notes(*block);
  if (exceeds_budget(*block) || !can_hold(*block)) {
    its.gave_way = true;  // the allocation may move, and its mover must know that code has its address
    return;
  }
  if (its.lasting == 0) {
    hold(block, true);
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

bool Exports::can_hold(const Block& block) const {
  return base_.backend.hooks->exact || block.arena->heap->placement.memory == UM_MEMORY_CHUNKED;
}

uint64_t Exports::shown(Block* block, uint64_t address) {
  const uint64_t offset_bytes = address - block->address;
  Movable* const movable = notes(*block).movable;
  if (movable == nullptr) return address;
  const RequiredContext current(base_.backend);
  Transfers& transfers = swapping_.mover().transfers;
  if (notes(*block).exports > 0) transfers.hand_out(movable, true);
  return transfers.reserve(movable) + offset_bytes;
}

// Pins the allocation for its first export, before the export is counted, and makes it ready for the code that gets the
// address. `for_life`: the address is the allocation's own from now on.
void Exports::hold(Block* block, bool for_life) {
  if (!can_hold(*block))
    throw Error(UM_UNSUPPORTED, "only chunked memory has exports on CUDA: all other stays accessible there");
  const bool held = notes(*block).exports > 0;
  if (managed(*block) && !held) return pin_pages(*block);
  Movable* const movable = notes(*block).movable;
  if (movable == nullptr) return;  // it is never evicted
  const RequiredContext current(base_.backend);
  Transfers& transfers = swapping_.mover().transfers;
  if (!held) {
    transfers.call_back(movable);
    swapping_.hold(movable, true);
  }
  const OnError undo([&] { movable->pins -= held ? 0 : 1; });
  transfers.stand_by(movable);  // the code that gets the address may use it in any stream
  transfers.hand_out(movable, for_life);
}

bool Exports::exceeds_budget(const Block& block) const {
  const uint64_t bytes = page_bytes(block);
  return managed(block) && bytes > budget_.managed_limit_bytes() && bytes <= base_.backend.total_bytes;
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

void Exports::pin_pages(const Block& block) {
  const Backend& backend = base_.backend;
  const uint64_t bytes = block.record.bytes, most_bytes = budget_.managed_limit_bytes();
  static_cast<void>(keep_pages_below(most_bytes - std::min(most_bytes, page_bytes(block))));
  bool in_budget = false;
  const OnError undo([&] {
    device_lock.assert_held();
    if (in_budget) budget_.unpin(block);
  });
  budget_.keep([&](Budget& budget) {
    budget.pin(block.address, bytes);
    in_budget = true;
  });
  while (!backend.hooks->pin(backend.ordinal, block.address, bytes)) {
    if (end_oldest(UM_MEMORY_MANAGED)) continue;
    throw Error(UM_OUT_OF_DEVICE_MEMORY,
                "an address of this tensor is to leave the device, which needs all of its " + in_words(bytes) +
                    " resident at once: with what is exported already that does not fit the capacity of " +
                    in_words(backend.total_bytes) + "; copy it out instead, or give back other exports");
  }
  accounts_.sample_residency();
}

void Exports::end(Block* block) noexcept {
  if (--notes(*block).exports > 0) return;
  if (notes(*block).movable != nullptr) --notes(*block).movable->pins;
  forget(*block);
}

void Exports::forget(const Block& block) noexcept {
  if (!managed(block)) return;
  base_.backend.hooks->unpin(base_.backend.ordinal, block.address, block.record.bytes);
  budget_.unpin(block);
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
