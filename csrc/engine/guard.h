// Runs before and after each op: makes its operands resident, keeps them so until it ends, and calls the participants.
#pragma once

#include <cstdint>

#include "base/thread_safety.h"
#include "engine/accounts.h"
#include "engine/budget_keeper.h"
#include "engine/device_base.h"
#include "engine/observation.h"
#include "engine/step_undo.h"
#include "engine/streams.h"
#include "engine/times.h"
#include "memory/stable_pool.h"

namespace um {

class Guard {
 public:
  Guard(DeviceBase& base, SwapEvents& swaps, Times& times, Streams& streams, StepUndo& step_undo,
        Observation& observation, BudgetKeeper& budget, Accounts& accounts)
      : base_(base),
        swaps_(swaps),
        times_(times),
        streams_(streams),
        step_undo_(step_undo),
        observation_(observation),
        budget_(budget),
        accounts_(accounts) {}

  // Begins an op: enter() makes its operands resident, and bring() begins its time. Throws um::Error.
  RunningOp* enter(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, um_gather gather, void* context)
      REQUIRES(device_lock);
  // ---- the lock is taken ----
  void bring(RunningOp& op);
  // Returns how many chunked allocations the op made that outlive it and were never seen.
  uint32_t end(RunningOp* op, const um_shown* outputs, uint32_t count) noexcept;
  // Makes the op's working set resident again, after another page that was paged in for the op may have evicted part of
  // it.
  void make_resident(const RunningOp& op);

  // ---- the lock is held ----
  void set_step(uint32_t step) REQUIRES(device_lock);

 private:
  RunningOp* prepare(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags) REQUIRES(device_lock);
  void gather(RunningOp& op, const um_access* accesses, uint32_t count) REQUIRES(device_lock);
  void note_writes() noexcept REQUIRES(device_lock);
  void outside_ops() noexcept REQUIRES(device_lock);
  void note_end() noexcept REQUIRES(device_lock);
  bool touches(const RunningOp& op) const;
  bool touch(const RunningOp& op) const;
  void report_oversized(const RunningOp& op) noexcept REQUIRES(device_lock);

  DeviceBase& base_;
  SwapEvents& swaps_ GUARDED_BY(device_lock);
  Times& times_ GUARDED_BY(device_lock);
  Streams& streams_ GUARDED_BY(device_lock);
  StepUndo& step_undo_ GUARDED_BY(device_lock);
  Observation& observation_ GUARDED_BY(device_lock);
  BudgetKeeper& budget_ GUARDED_BY(device_lock);
  Accounts& accounts_ GUARDED_BY(device_lock);
  StablePool<RunningOp> op_pool_ GUARDED_BY(device_lock);
  uint32_t step_ops_ GUARDED_BY(device_lock) = 0;
};

}  // namespace um
