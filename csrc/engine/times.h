// Divides a device's time into kinds, on the emulated device, whose ops run in the calling threads. Between two turns
// all time is of one kind, except stalls for faults and waits, which are measured where they happen.
//
// For a device whose ops run later, the turns are logged in a sampled step, to show what the host did
// (engine/step_times.h).
//
// Example: turn(compute) at 0 ms and turn(guard) at 10 ms, with faults of 4 ms in between, count 6 ms of compute.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/swap_events.h"
#include "memory/backend.h"
#include "umadvise.h"

namespace um {

class Times {
 public:
  struct Turn {
    int64_t at_ns;  // it lasts until the next turn
    um_time kind;
  };

  // Borrows both arguments.
  Times(const Backend& backend, const SwapEvents& swaps) : backend_(backend), swaps_(swaps) {}

  // ---- the lock is held ----
  // Starts or stops counting. Nothing is counted on a device whose ops run later than they are called.
  void set(bool on) noexcept;
  bool on() const noexcept { return on_ || logs_; }
  // Begins a turn of this kind. Returns the time of the last turn without stalls.
  int64_t turn(um_time kind) noexcept;
  // Returns the kind of the present turn.
  um_time kind() const noexcept { return logs_ ? log_.back().kind : kind_; }
  // Begins a turn of the kind for time outside of ops, because no op runs in any thread.
  void outside_ops() noexcept { turn(outside_); }
  // Sets the kind of time outside of ops, and returns the former one.
  um_time set_outside(um_time kind, bool ops_run) noexcept;
  // Stores the times until now, which it returns. UM_UNKNOWN: they are not known.
  int64_t read(um_spent_time* out) noexcept;
  // Returns when read() was called last.
  int64_t read_ns() const noexcept { return read_ns_; }
  // Logs the turns from now on, as if the present one had begun at `since_ns`; end_log() ends that.
  void log(int64_t since_ns) noexcept;
  void end_log() noexcept { logs_ = false; }
  bool logs() const noexcept { return logs_; }
  const std::vector<Turn>& logged() const noexcept { return log_; }

 private:
  driver::StallTimes faults() const noexcept;
  int64_t stood_ns() const noexcept;
  void note(int64_t at_ns, um_time kind) noexcept;

  const Backend& backend_;
  const SwapEvents& swaps_;
  bool on_ = false, logs_ = false;
  std::vector<Turn> log_;
  um_time kind_ = UM_TIME_SCRIPT, outside_ = UM_TIME_SCRIPT;
  int64_t since_ns_ = 0, stood_ns_ = 0;  // the present turn's begin, and the total of stalls by then
  int64_t read_ns_ = 0;
  int64_t ns_[UM_TIME_COUNT] = {};
};

}  // namespace um
