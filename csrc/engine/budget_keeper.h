// Keeps a device's budget, where it has one: tells the model what is used next, and sends to the host what must leave
// for that.
#pragma once

#include <memory>

#include "engine/budget.h"
#include "engine/participant.h"

namespace um {

class BudgetKeeper final : public Participant {
 public:
  explicit BudgetKeeper(um_device& device) : Participant(device, kBudgetTurns) {}

  // 0: none from now on. Throws um::Error.
  void set(uint64_t bytes);
  void drop() noexcept;
  // Of a closed device, on which only workspaces are left: libraries keep them for the life of the process.
  void drop_if_idle() noexcept;

  // What leaves on a GPU does after all that `stream` was given until now, and for that op. Throws um::Error.
  template <class Change>
  void keep(const Change& change, driver::CUstream stream = nullptr, const OpIdentity& op = {}) {
    if (!budget_->bounded()) return;
    const RequiredContext current(backend());
    budget_->follow(allocations());
    change(*budget_);
    if (budget_->owes()) enforce(stream, op);
  }
  // Refuses an op whose managed memory exceeds the managed share, where plain memory is limited and can be converted:
  // the caller converts it and runs the op again. Otherwise the device would hold more than the budget until the op
  // ends. Example: of 128 MiB, 115 are plain; an op that uses 64 MiB of managed memory would bring the device to
  // 179 MiB. Throws um::Error.
  void check(const RunningOp& op) const;
  // Pages whose address code outside of ops has are pinned as long as there is room for the op beside them. Throws
  // um::Error.
  void end_exports_for(const RunningOp& op);
  // The same for a range by itself, which is used now: Budget::use.
  void use(uint64_t address, uint64_t bytes, Budget::Use use, driver::CUstream stream = nullptr,
           const OpIdentity& op = {});
  // What managed memory may take of the device, and what it takes.
  uint64_t managed_limit_bytes() const;
  uint64_t resident_bytes() const;
  bool holds(const Block& block) const { return budget_->holds(block.address, block.record.bytes); }
  void unpin(const Block& block) noexcept { budget_->unpin(block.address, block.record.bytes); }
  // A page faults on a device that announces that. No running op uses it, or it counts already; evicts others for it,
  // but none that a running op uses. Example: torch fills a new tensor from a list, outside of ops. Throws um::Error.
  void count_fault(uint64_t address, bool write);
  void outside_ops() const noexcept { announce_faults(budget_->bounded()); }
  // A library's own memory: it is not sent away.
  void set_workspace(Block* block, bool is_one);

  void begin_op(RunningOp& op) override;

 private:
  void end_exports_beyond(uint64_t needed_bytes);
  void announce_faults(bool on) const noexcept;
  void enforce(driver::CUstream stream, const OpIdentity& op);
  const Backend& backend() const;
  const Allocations& allocations() const;
  uint64_t most_bytes() const;
  void seed(Budget& budget) const;

  Budget none_;
  std::unique_ptr<Budget> kept_;
  Budget* budget_ = &none_;
};

}  // namespace um
