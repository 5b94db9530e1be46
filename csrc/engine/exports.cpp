#include "engine/exports.h"

#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "engine/doors.h"
#include "memory/address_map.h"
#include "memory/host_memory.h"

namespace um {
namespace {

uint64_t page_bytes(const Block& block) { return Budget::spanned_bytes(block.address, block.end() - block.address); }

}  // namespace

uint64_t Exports::add(const void* address) {
  const um_device::Found found = um_device::find_range(address, 0);
  const uint64_t offset_bytes = address_of(address) - found.block->address;
  found.device->exports.hold(found.block, false);
  ++notes(*found.block).exports;
  return found.block->address + offset_bytes;
}

void Exports::add_lasting(const void* address) {
  const um_device::Found found = um_device::find_range(address, 0);
  Exports& exports = found.device->exports;
  Notes& its = notes(*found.block);
  if (exports.exceeds_budget(*found.block) || !exports.can_hold(*found.block)) {
    its.gave_way = true;  // the allocation may move, and its mover must know that code has its address
    return;
  }
  if (its.lasting == 0) {
    exports.hold(found.block, true);
    ++its.exports;
    its.gave_way = false;
  }
  its.lasting = ++exports.last_lasting_;
}

void Exports::release(const void* address) {
  const um_device::Found found = um_device::find_range(address, 0);
  const Notes& its = notes(*found.block);
  if (its.exports == (its.lasting != 0 ? 1 : 0)) throw Error(UM_BAD_STATE, "the allocation has no export to release");
  found.device->exports.end(found.block);
}

bool Exports::can_hold(const Block& block) const {
  return device_.backend.hooks->exact || block.arena->heap->placement.memory == UM_MEMORY_CHUNKED;
}

uint64_t Exports::shown(const void* address) {
  const um_device::Found found = um_device::find_range(address, 0);
  const uint64_t offset_bytes = address_of(address) - found.block->address;
  Movable* const movable = notes(*found.block).movable;
  if (movable == nullptr) return address_of(address);
  const RequiredContext current(found.device->backend);
  Transfers& transfers = found.device->swapping.mover().transfers;
  if (notes(*found.block).exports > 0) transfers.hand_out(movable, true);
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
  const RequiredContext current(device_.backend);
  Transfers& transfers = device_.swapping.mover().transfers;
  if (!held) {
    transfers.call_back(movable);
    device_.swapping.hold(movable, true);
  }
  const OnError undo([&] { movable->pins -= held ? 0 : 1; });
  transfers.stand_by(movable);  // the code that gets the address may use it in any stream
  transfers.hand_out(movable, for_life);
}

bool Exports::exceeds_budget(const Block& block) const {
  const uint64_t bytes = page_bytes(block);
  return managed(block) && bytes > device_.budget.managed_limit_bytes() && bytes <= device_.backend.total_bytes;
}

uint64_t Exports::pinned_page_bytes() const {
  uint64_t bytes = 0;
  device_.allocations->each_arena([&](const Arena& arena) {
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
  const Backend& backend = device_.backend;
  const uint64_t bytes = block.record.bytes, most_bytes = device_.budget.managed_limit_bytes();
  static_cast<void>(keep_pages_below(most_bytes - std::min(most_bytes, page_bytes(block))));
  bool in_budget = false;
  const OnError undo([&] {
    device_lock.assert_held();
    if (in_budget) device_.budget.unpin(block);
  });
  device_.budget.keep([&](Budget& budget) {
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
  device_.accounts.sample_residency();
}

void Exports::end(Block* block) noexcept {
  if (--notes(*block).exports > 0) return;
  if (notes(*block).movable != nullptr) --notes(*block).movable->pins;
  forget(*block);
}

void Exports::forget(const Block& block) noexcept {
  if (!managed(block)) return;
  device_.backend.hooks->unpin(device_.backend.ordinal, block.address, block.record.bytes);
  device_.budget.unpin(block);
}

bool Exports::end_oldest(um_memory memory) {
  Block* oldest = nullptr;
  device_.allocations->each_arena([&](const Arena& arena) {
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
  finish_kernels(device_.backend, Wait::export_ended, "waiting for what uses an exported address");
  end(oldest);
  notes(*oldest).lasting = 0;
  notes(*oldest).gave_way = true;
  ++device_.allocations->statistics.exports_ended;
  return true;
}

}  // namespace um
