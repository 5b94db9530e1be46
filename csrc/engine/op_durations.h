// How long recorded ops ran on a device whose host runs ahead, by the device's own clock. What an op waits for before
// it begins is no part of it, nor is the time in which the device stood still for what is allocated within it: a step
// that stalls is recorded as if it did not. Not thread-safe: the device's lock is held, and its context is current.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/event_spans.h"
#include "umadvise.h"

namespace um {

class OpDurations {
 public:
  using Number = EventSpans::Number;

  explicit OpDurations(const Backend& backend) : spans_(backend) {}

  // Its bring-in is ordered before. `ticket`: the tape's.
  Number begin(uint64_t ticket, driver::CUstream stream) noexcept;
  void end(Number op, driver::CUstream stream) noexcept { spans_.end(op, stream); }
  // OpPause's.
  Number pause(Number op, driver::CUstream stream) noexcept;
  void resume(Number pause, driver::CUstream stream) noexcept { spans_.end(pause, stream); }

  size_t count() const { return spans_.count(); }
  // The device is idle: `tell` is given each op's ticket and nanoseconds, if they are known, and all is forgotten.
  template <class Tell>
  void settle(const Tell& tell) {
    subtract_pauses();
    for (const Op& op : ops_) {
      const int64_t length_ns = spans_.length_ns(op.span);
      if (length_ns != UM_UNKNOWN) tell(op.ticket, std::max<int64_t>(0, length_ns - op.stood_ns));
    }
    clear();
  }
  void clear() noexcept;
  // Before the device closes.
  void destroy() noexcept;

 private:
  struct Op {
    uint64_t ticket;
    Number span;
    int64_t stood_ns = 0;
  };
  struct Pause {
    Number op, span;
  };
  void subtract_pauses() noexcept;

  EventSpans spans_;
  std::vector<Op> ops_;  // by span
  std::vector<Pause> pauses_;
};

// The engine is at work for an op that runs, and the device may stand still meanwhile. 0: for none that is timed.
class OpPause {
 public:
  OpPause(OpDurations& durations, const Backend& backend, OpDurations::Number op, driver::CUstream stream) noexcept
      : durations_(durations), backend_(backend), stream_(stream) {
    if (op == 0) return;
    const CurrentContext current(backend_);
    pause_ = durations_.pause(op, stream_);
  }
  ~OpPause() {
    if (pause_ == 0) return;
    const CurrentContext current(backend_);
    durations_.resume(pause_, stream_);
  }
  OpPause(const OpPause&) = delete;
  OpPause& operator=(const OpPause&) = delete;

 private:
  OpDurations& durations_;
  const Backend& backend_;
  const driver::CUstream stream_;
  OpDurations::Number pause_ = 0;
};

}  // namespace um
