// The times at which the ops of a step ran on the device, from two events around each op. The host launches kernels
// long before they run, so its own times would attribute a fault to an op that has not begun.
//
// Not thread-safe: callers hold the device's lock, and its context is current, except in destroy().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/event_spans.h"
#include "engine/running_op.h"
#include "memory/backend.h"

namespace um {

class OpTimeline {
 public:
  explicit OpTimeline(const Backend& backend) : backend_(backend), events_(backend) {}
  // Called before the device closes.
  void destroy() noexcept { events_.destroy(); }

  // Begins a new timeline without ops. Requires that the device is idle.
  void start() noexcept;
  // Notes that the stream's work between both calls belongs to the op. begin() returns 0 if that cannot be noted, and
  // end() accepts 0.
  uint64_t begin(const OpIdentity& op, driver::CUstream stream) noexcept;
  void end(uint64_t number, driver::CUstream stream) noexcept;
  // Records an event; nullptr: that failed.
  driver::CUevent mark(driver::CUstream stream) noexcept;
  // Computes the times. Requires that the device is idle again. The functions below may be called from now on, until
  // the next start().
  void settle() noexcept;

  struct Op {
    OpIdentity identity;
    driver::CUevent begin{}, end{};
    int64_t called_ns = 0, returned_ns = 0;  // on the host's clock, when it was launched
    bool ended = false;
    int64_t begin_ns = 0, end_ns = 0;
    int64_t latest_end_ns = 0;  // the maximum over this op and all that began before
  };
  // Returns the ops in the order in which they began.
  const std::vector<Op>& ops() const { return ops_; }
  // Stores the time at which the device passed an event that was recorded since start(). Returns false if it is
  // unknown.
  bool time_of(driver::CUevent event, int64_t* ns) const;

  // Returns the op that ran at a time of CLOCK_MONOTONIC; if several did, the one that began last. nullptr: none did.
  const OpIdentity* running(int64_t at_ns) const;
  // Returns the index in the step of the last op that had begun by then; 0: none had.
  uint32_t reached(int64_t at_ns) const;

 private:
  static constexpr int kOriginAttempts = 5;
  static constexpr size_t kMostOps = size_t{1} << 17;
  std::vector<Op>::const_iterator after(int64_t at_ns) const;

  const Backend& backend_;
  std::vector<Op> ops_;  // after settle(), in the order in which they began
  driver::CUevent origin_{};
  int64_t origin_ns_ = 0;
  TimingEvents events_;
};

}  // namespace um
