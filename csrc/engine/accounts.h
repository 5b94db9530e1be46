// What a device has counted, and what it holds. The lock is held.
#pragma once

#include "engine/participant.h"
#include "memory/statistics.h"
#include "umadvise.h"

namespace um {

// Takes part where faults come in any order, so that the peak on the host is seen.
class Accounts final : public Participant {
 public:
  explicit Accounts(um_device& device) : Participant(device, kAccountTurns) {}

  void read(um_counters* out) const;
  void read(um_memory_stats* out);
  um_memory_history history() const;
  uint64_t placed(um_placed* out, uint64_t capacity) const;
  // Of the device and of everybody who takes part.
  void reset_all_peaks();
  // After something moved.
  void sample_residency() noexcept;

  void end_op(RunningOp& /*op*/) noexcept override { sample_residency(); }

 private:
  Level resident_, host_;  // bytes
  Level resident_by_role_[UM_ROLE_COUNT];
};

}  // namespace um
