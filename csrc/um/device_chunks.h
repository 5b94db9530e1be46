// The device's chunks of 2 MiB, as blocks of managed memory and plain memory share them: how many are free, and whose
// goes next when none is. No allocation, no locks. `uvm/<file>` as in um/model.cpp.
#pragma once

#include <cstdint>

#include "um/eviction_order.h"

namespace um {

class DeviceChunks {
 public:
  // `blocks`: borrowed.
  DeviceChunks(rules::Block* blocks, uint32_t count) : blocks_(blocks), count_(count), order_(blocks) {}

  uint32_t free() const { return count_ - plain_ - resident_; }  // neither plain nor holding a block
  uint32_t resident() const { return resident_; }                // blocks with a device copy
  uint32_t pinned() const { return pinned_resident_; }           // device-resident and pinned
  // The block that would be evicted next, or kNone: every chunk is pinned, plain or free.
  uint32_t next_victim() const { return order_.first(); }

  // A pinned block is never evicted; a prefetch or host access that moves it still does. Counted. Pinned chunks are on
  // no list (uvm/uvm_pmm_gpu.c, chunk_update_lists_locked).
  uint32_t pins(uint32_t block) const { return blocks_[block].pins; }
  void pin(uint32_t index) {
    rules::Block& block = blocks_[index];
    if (block.pins++ > 0 || !block.on_device) return;
    order_.remove(index);
    ++pinned_resident_;
  }
  // Back to the tail, not to its old place (uvm/uvm_pmm_gpu.c, uvm_pmm_gpu_unpin_allocated).
  void unpin(uint32_t index) {
    rules::Block& block = blocks_[index];
    if (--block.pins > 0 || !block.on_device) return;
    --pinned_resident_;
    mark_used(index);
  }
  // A chunk that was taken with Model::take_chunk.
  void give_plain() { --plain_; }

 private:
  friend class Model;

  void take_plain() { ++plain_; }
  // To the tail: on allocation, on every "make resident here" and every service, also one that finds the page in place
  // (uvm/uvm_va_block.c, block_mark_memory_used). A chunk that is still discarded then goes to the discarded list (same
  // file, uvm_va_block_service_finish).
  void mark_used(uint32_t index) {
    const rules::Block& block = blocks_[index];
    if (block.pins == 0) order_.move_to_tail(index, block.discarded ? rules::Queue::discarded : rules::Queue::used);
  }
  // A free chunk for a block, which the device does not map yet.
  void take(uint32_t index) {
    place(index, true);
    ++resident_;
    if (blocks_[index].pins > 0) ++pinned_resident_;
  }
  // The block's chunk goes, with its mapping. A free chunk does not remember whose it was.
  void leave(uint32_t index) {
    order_.remove(index);
    place(index, false);
    --resident_;
    if (blocks_[index].pins > 0) --pinned_resident_;
  }
  void place(uint32_t index, bool on_device) {
    blocks_[index].on_device = on_device;
    blocks_[index].device_rights = rules::Rights::none;
  }

  rules::Block* const blocks_;
  const uint32_t count_;
  uint32_t plain_ = 0, resident_ = 0, pinned_resident_ = 0;
  rules::Order<rules::Block> order_;
};

}  // namespace um
