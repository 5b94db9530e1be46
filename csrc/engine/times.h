// What a device's time goes into where it is known: on the emulated device, whose ops run in the threads that call
// them. Between two turns all time is of one kind, but for what somebody stood still meanwhile: faults and waits are
// measured where they happen. Of a device whose ops run later the turns are logged, for a step that is sampled: what
// the host was at (engine/step_times.h). Device's lock as each function says.
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
    int64_t at_ns;  // and until the next one
    um_time kind;
  };

  // Both are borrowed.
  Times(const Backend& backend, const SwapEvents& swaps) : backend_(backend), swaps_(swaps) {}

  // ---- the lock is held ----
  // Counts from now on, or no longer; nothing where ops run later than they are called.
  void set(bool on) noexcept;
  bool on() const noexcept { return on_ || logs_; }
  // From now on it is this kind. Returns how much of the last one there was since the turn before.
  int64_t turn(um_time kind) noexcept;
  // What time is for now.
  um_time kind() const noexcept { return logs_ ? log_.back().kind : kind_; }
  // No op runs in any thread: what that time is for.
  void outside_ops() noexcept { turn(outside_); }
  // What time outside of ops is for from now on; returns what it was for.
  um_time set_outside(um_time kind, bool ops_run) noexcept;
  // Until now, which it returns. UM_UNKNOWN where it is not known.
  int64_t read(um_spent_time* out) noexcept;
  // When that was done last.
  int64_t read_ns() const noexcept { return read_ns_; }
  // Logs the turns from now on, the present one the first, as if it had begun then; or no longer.
  void log(int64_t since_ns) noexcept;
  void end_log() noexcept { logs_ = false; }
  bool logs() const noexcept { return logs_; }
  const std::vector<Turn>& logged() const noexcept { return log_; }

 private:
  emulated::Stood faults() const noexcept;
  int64_t stood_ns() const noexcept;
  void note(int64_t at_ns, um_time kind) noexcept;

  const Backend& backend_;
  const SwapEvents& swaps_;
  bool on_ = false, logs_ = false;
  std::vector<Turn> log_;
  um_time kind_ = UM_TIME_SCRIPT, outside_ = UM_TIME_SCRIPT;
  int64_t since_ns_ = 0, stood_ns_ = 0;  // when the present kind began, and what had been stood still by then
  int64_t read_ns_ = 0;
  int64_t ns_[UM_TIME_COUNT] = {};
};

}  // namespace um
