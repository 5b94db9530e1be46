// Memory of the device's heaps, which keeps its address: plain memory here, whose contents never move, and managed
// memory (engine/managed_memory.h), whose pages do.
#pragma once

#include "engine/block_owners.h"
#include "engine/device_base.h"
#include "engine/memory_kind.h"

namespace um {

class HeapMemory : public MemoryKind {
 public:
  HeapMemory(DeviceBase& base, BlockOwners& owners) : base_(base), owners_(owners) {}

  Block* make(const Request& request) override REQUIRES(device_lock) {
    Block* const block = base_.allocations->allocate(request.bytes, request.placement, request.birth);
    if (request.op != nullptr) request.op->fixed.push_back(block);
    return block;
  }
  void use(RunningOp& op, const Operand& operand) override REQUIRES(device_lock) {
    owners_.meet(operand.block, operand.access->storage);
    op.fixed.push_back(operand.block);
  }
  void meet(Block* block, void* storage) override REQUIRES(device_lock) { owners_.meet(block, storage); }
  bool can_hold(const Block& /*block*/, bool /*lasting*/) const override { return base_.backend.hooks->exact; }
  void free(Block* block) noexcept override REQUIRES(device_lock) {
    owners_.forget(block);
    base_.allocations->free(block);
  }

 protected:
  DeviceBase& base_;
  BlockOwners& owners_;
};

class DeviceMemory final : public HeapMemory {
 public:
  DeviceMemory(DeviceBase& base, BlockOwners& owners, MemoryKind& managed)
      : HeapMemory(base, owners), managed_(managed) {}

  // Resolves UM_MEMORY_PREFER_DEVICE too, which is a preference and not a kind of memory.
  Block* make(const Request& request) override REQUIRES(device_lock);
  void prefetch(Block* block, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream) override;
  void free(Block* block) noexcept override REQUIRES(device_lock);

 private:
  static constexpr uint64_t kNothingRefused = ~uint64_t{0};
  MemoryKind& managed_;
  // The smallest UM_MEMORY_PREFER_DEVICE request that plain memory has refused since a plain block was last freed.
  uint64_t refused_bytes_ = kNothingRefused;
};

}  // namespace um
