// Keeps a device's budget for managed memory: notes uses in the budget's model before ops, and evicts the victims.
#pragma once

#include <functional>
#include <memory>

#include "base/thread_safety.h"
#include "engine/block_owners.h"
#include "engine/budget.h"
#include "engine/device_base.h"
#include "engine/observation.h"
#include "engine/participant.h"
#include "engine/sampling.h"

namespace um {

class BudgetKeeper final : public Participant {
 public:
  // `serve` makes accesses possible that no op announced.
  BudgetKeeper(DeviceBase& base, const BlockOwners& owners, Observation& observation, Sampling& sampling,
               driver::AccessOwner serve)
      : Participant(base, kBudgetTurns),
        owners_(owners),
        observation_(observation),
        sampling_(sampling),
        serve_(serve) {}

  // Sets the budget; 0: none from now on. Throws um::Error.
  void set(uint64_t bytes) REQUIRES(device_lock);
  void drop() noexcept REQUIRES(device_lock);
  // Drops the budget of a closed device that has only workspaces left, which libraries keep until the process ends.
  void drop_if_idle() noexcept REQUIRES(device_lock);

  // Applies `change` to the model and evicts its victims. On a GPU the evictions run after all work of `stream` until
  // now, and count for that op. Throws um::Error.
  template <class Change>
  void keep(const Change& change, driver::CUstream stream = nullptr, const OpIdentity& op = {}) REQUIRES(device_lock) {
    if (!budget_->bounded()) return;
    const RequiredContext current(base_.backend);
    budget_->follow(*base_.allocations);
    change(*budget_);
    if (budget_->owes()) enforce(stream, op);
  }
  // Refuses an op whose managed memory exceeds the managed share, where plain memory is limited and can be converted:
  // the caller converts it and runs the op again. Otherwise the device would hold more than the budget until the op
  // ends. Example: of 128 MiB, 115 are plain; an op that uses 64 MiB of managed memory would bring the device to
  // 179 MiB. Throws um::Error.
  void check(const RunningOp& op) const REQUIRES(device_lock);
  // Notes the size of the op's working set.
  void measure(RunningOp& op) const;
  // Ends exports of pages, for which code outside of ops has addresses, if the op's pages do not fit beside them.
  // Throws um::Error.
  void end_exports_for(const RunningOp& op) REQUIRES(device_lock);
  // Ends exports for a range that is used now, and notes its use (`Budget::use`).
  void use(uint64_t address, uint64_t bytes, Budget::Use use, driver::CUstream stream = nullptr,
           const OpIdentity& op = {}) REQUIRES(device_lock);
  // Return how much of the device managed memory may take, and how much it takes.
  uint64_t managed_limit_bytes() const;
  uint64_t resident_bytes() const;
  bool holds(const Block& block) const { return budget_->holds(block.address, block.record.bytes); }
  void unpin(const Block& block) noexcept { budget_->unpin(block.address, block.record.bytes); }
  // Counts a page fault, on a device that announces faults, unless a running op uses the page and so has counted it.
  // Evicts other pages for it, but none of running ops. Example: torch fills a new tensor from a list, outside of ops.
  // Throws um::Error.
  void count_fault(uint64_t address, bool write) REQUIRES(device_lock);
  void outside_ops() const noexcept { announce_faults(budget_->bounded()); }
  // Marks memory that a library allocated for itself, which is not evicted.
  void set_workspace(Block* block, bool is_one);

  void begin_op(RunningOp& op) override REQUIRES(device_lock);

  // Ends exports until all together hold at most so many bytes of pages, or no more can end (engine/exports.h).
  std::function<void(uint64_t bytes)> end_exports = [](uint64_t) {};

 private:
  void end_exports_beyond(uint64_t needed_bytes) REQUIRES(device_lock);
  void announce_faults(bool on) const noexcept;
  void enforce(driver::CUstream stream, const OpIdentity& op) REQUIRES(device_lock);
  uint64_t most_bytes() const;
  void seed(Budget& budget) const;

  const BlockOwners& owners_;
  Observation& observation_;
  Sampling& sampling_;
  const driver::AccessOwner serve_;
  Budget none_;
  std::unique_ptr<Budget> kept_;
  Budget* budget_ = &none_;
};

}  // namespace um
