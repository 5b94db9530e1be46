// Exports: allocations whose address has left torch are held on the device. Some exports end when somebody says so;
// others last, as nobody sees their end, until they must give way to what finds no room.
#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/host_memory.h"

using um::Block;
using um::Error;
using um::RequiredContext;

void um_device::export_address(const void* address) {
  const Found found = find_range(address, 0);
  found.device->hold_exported(found.block);
  ++found.block->record.exports;
}

void um_device::export_lasting(const void* address) {
  const Found found = find_range(address, 0);
  um::Record& record = found.block->record;
  if (record.lasting == 0) {
    found.device->hold_exported(found.block);
    ++record.exports;
    record.gave_way = false;
  }
  record.lasting = ++found.device->last_lasting_;
}

void um_device::release_export(const void* address) {
  const Found found = find_range(address, 0);
  const um::Record& record = found.block->record;
  if (record.exports == (record.lasting != 0 ? 1 : 0))
    throw Error(UM_BAD_STATE, "the allocation has no export to release");
  found.device->end_export(found.block);
}

// Before its exports are counted up: the first has it there, ready for whoever gets the address.
void um_device::hold_exported(Block* block) {
  if (backend_.hooks == nullptr && block->arena->heap->placement.memory != UM_MEMORY_CHUNKED)
    throw Error(UM_UNSUPPORTED, "only chunked memory has exports on CUDA: all other stays accessible there");
  if (block->record.exports > 0) return;
  if (um::managed(*block)) return pin_pages(*block);
  if (block->swapped == nullptr) return;  // it never leaves
  const RequiredContext current(backend_);
  hold(block->swapped, true);
  const um::OnError undo([&] { swapper_->unpin(block->swapped); });
  swapper_->stand_by(block->swapped);  // whoever gets the address may use it from any stream
  block->swapped->exported = true;
}

void um_device::pin_pages(const Block& block) {
  const uint64_t bytes = block.record.bytes;
  bool in_budget = false;
  const um::OnError undo([&] {
    if (in_budget) budget_->unpin(block.address, bytes);
  });
  keep_budget([&](um::Budget& budget) {
    budget.pin(block.address, bytes);
    in_budget = true;
  });
  while (!backend_.hooks->pin(backend_.ordinal, block.address, bytes)) {
    if (end_oldest_export(UM_MEMORY_MANAGED)) continue;
    throw Error(UM_OUT_OF_DEVICE_MEMORY,
                "an address of this tensor is to leave the device, which needs all of its " + um::in_words(bytes) +
                    " resident at once: with what is exported already that does not fit the capacity of " +
                    um::in_words(backend_.total_bytes) + "; copy it out instead, or give back other exports");
  }
  sample_residency();
}

void um_device::end_export(Block* block) noexcept {
  um::Record& record = block->record;
  if (--record.exports > 0) return;
  if (block->swapped != nullptr) swapper_->unpin(block->swapped);
  if (!um::managed(*block)) return;
  backend_.hooks->unpin(backend_.ordinal, block->address, record.bytes);
  if (budget_ != nullptr) budget_->unpin(block->address, record.bytes);
}

// Of those that last and that alone hold memory of this kind: whoever asked for it longest ago has most likely used it.
// False: there is none. The device's context is current.
bool um_device::end_oldest_export(um_memory memory) {
  Block* oldest = nullptr;
  allocations_->each_arena([&](const um::Arena& arena) {
    if (arena.heap->placement.memory != memory) return;
    arena.each_block([&](Block& block) {
      const um::Record& record = block.record;
      if (record.lasting == 0 || record.exports > 1) return;
      if (block.swapped != nullptr ? block.swapped->pins > 1 : !um::managed(block)) return;
      if (oldest == nullptr || record.lasting < oldest->record.lasting) oldest = &block;
    });
  });
  if (oldest == nullptr) return false;
  // Kernels that were given the address may run in streams that no op ever named.
  finish_kernels(um::Wait::export_ended, "waiting for what uses an exported address");
  end_export(oldest);
  oldest->record.lasting = 0;
  oldest->record.gave_way = true;
  ++allocations_->statistics.exports_ended;
  return true;
}
