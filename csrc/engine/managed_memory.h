// Managed memory: its pages are on the device or on the host, and within the budget if there is one.
#pragma once

#include "engine/accounts.h"
#include "engine/budget_keeper.h"
#include "engine/exports.h"
#include "engine/heap_memory.h"
#include "engine/sampling.h"
#include "engine/streams.h"

namespace um {

class ManagedMemory final : public HeapMemory {
 public:
  ManagedMemory(DeviceBase& base, BlockOwners& owners, Streams& streams, Sampling& sampling, BudgetKeeper& budget,
                Accounts& accounts, Exports& exports)
      : HeapMemory(base, owners),
        streams_(streams),
        sampling_(sampling),
        budget_(budget),
        accounts_(accounts),
        exports_(exports) {}

  Block* make(const Request& request) override REQUIRES(device_lock);
  void place(Block* block, const Request& request) override REQUIRES(device_lock);
  // In ordered counting, outputs are touched here in order of allocation, and not by the kernel's threads in any order.
  bool touch(uint64_t address, const Request& request) override;
  void use(RunningOp& op, const Operand& operand) override REQUIRES(device_lock);
  void prefetch(Block* block, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream) override
      REQUIRES(device_lock);
  // A lasting export must fit the share of managed memory.
  bool can_hold(const Block& block, bool lasting) const override REQUIRES(device_lock);
  void hold(Block* block, bool for_life) override REQUIRES(device_lock);
  void let_go(Block* block) noexcept override REQUIRES(device_lock);
  void free(Block* block) noexcept override REQUIRES(device_lock);

 private:
  Streams& streams_;
  Sampling& sampling_;
  BudgetKeeper& budget_;
  Accounts& accounts_;
  Exports& exports_;
};

}  // namespace um
