// Reports a device's counters and its memory.
#pragma once

#include "base/thread_safety.h"
#include "engine/budget_keeper.h"
#include "engine/participant.h"
#include "engine/sampling.h"
#include "memory/statistics.h"
#include "umadvise.h"

namespace um {

// Takes part where faults are served in any order, to observe the peak of host memory.
class Accounts final : public Participant {
 public:
  Accounts(DeviceBase& base, const Sampling& sampling, const BudgetKeeper& budget)
      : Participant(base, kAccountTurns), sampling_(sampling), budget_(budget) {}

  void read(um_counters* out) const REQUIRES(device_lock);
  void read(um_memory_stats* out) REQUIRES(device_lock);
  um_memory_history history() const;
  uint64_t placed(um_placed* out, uint64_t capacity) const;
  // Resets the peaks of the device and of all participants.
  void reset_all_peaks() REQUIRES(device_lock);
  // Called after memory has moved.
  void sample_residency() noexcept REQUIRES(device_lock);

  void end_op(RunningOp& /*op*/) noexcept override REQUIRES(device_lock) { sample_residency(); }

 private:
  const Sampling& sampling_;
  const BudgetKeeper& budget_;
  Level resident_, host_;  // bytes
  Level resident_by_role_[UM_ROLE_COUNT];
};

}  // namespace um
