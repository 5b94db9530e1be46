// When the ops of a step ran on the device, by its own clock: two events around each of them. The host gives kernels
// out long before they run, so its own times would put a fault into an op that has not begun. Not thread-safe: the
// device's lock is held, and its context is current, if not at the end of all.
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
  // Before the device closes.
  void destroy() noexcept { events_.destroy(); }

  // The device is idle: a new timeline, without ops.
  void start() noexcept;
  // What the stream is given between the two runs in the op. 0 when it could not be noted, which end() takes too.
  uint64_t begin(const OpIdentity& op, driver::CUstream stream) noexcept;
  void end(uint64_t number, driver::CUstream stream) noexcept;
  // nullptr where it could not be noted.
  driver::CUevent mark(driver::CUstream stream) noexcept;
  // The device is idle again: from now on the following can be asked, until the next start.
  void settle() noexcept;

  struct Op {
    OpIdentity identity;
    driver::CUevent begin{}, end{};
    int64_t called_ns = 0, returned_ns = 0;  // by the host: when it was given to the device
    bool ended = false;
    int64_t begin_ns = 0, end_ns = 0;
    int64_t latest_end_ns = 0;  // of this and all that began before
  };
  // By the time at which they began.
  const std::vector<Op>& ops() const { return ops_; }
  // When the device came to an event that was recorded since the start; false where nobody can tell.
  bool time_of(driver::CUevent event, int64_t* ns) const;

  // The op that ran at a time of CLOCK_MONOTONIC, the one that began last where several did; nullptr when none did.
  const OpIdentity* running(int64_t at_ns) const;
  // Index in the step of the op that began last until then; 0 before the first.
  uint32_t reached(int64_t at_ns) const;

 private:
  static constexpr int kOriginAttempts = 5;
  static constexpr size_t kMostOps = size_t{1} << 17;
  std::vector<Op>::const_iterator after(int64_t at_ns) const;

  const Backend& backend_;
  std::vector<Op> ops_;  // settled: by the time at which they began
  driver::CUevent origin_{};
  int64_t origin_ns_ = 0;
  TimingEvents events_;
};

}  // namespace um
