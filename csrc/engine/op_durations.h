// Durations of recorded ops on a device whose host runs ahead, on the device's own clock.
//
// A duration excludes the time for which an op waits before it begins, the device's stalls for memory allocated within
// the op, and the time that the device waits for the host to launch its kernels. So a step that stalls, or whose host
// is late, is recorded as if it were not. (On an H100 the host took 70 us an op longer to launch BERT-Large's ops than
// their kernels ran: without this, recomputing them never seemed worthwhile, profiles/measured.)
//
// Example: an op spans 100 us on the device, 20 us of them in a pause. The host took 60 us outside of the pause to
// launch it, and the device was idle when it began. The recorded duration is 100 - 20 - 60 = 20 us.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_safety.h"
#include "engine/event_spans.h"
#include "engine/participant.h"
#include "engine/tape.h"

namespace um {

class OpDurations final : public Participant {
 public:
  OpDurations(DeviceBase& base, Tape& tape);

  // Begins a recording. Waits until the device is idle, so that later times can be compared with that moment.
  void start() noexcept;
  // Waits for the device, and reports the durations of all ended ops to the tape. Ops that still run in other threads
  // keep the host's times.
  void settle() noexcept;
  // Called before the device closes.
  void destroy() noexcept;

  void begin_op(RunningOp& op) override REQUIRES(device_lock);
  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock);
  void end_step() override REQUIRES(device_lock);

 private:
  friend class OpPause;
  using Number = EventSpans::Number;
  static constexpr size_t kMostUnsettled = size_t{1} << 16;  // spans; end_step() settles above this
  struct Op {
    uint64_t ticket;  // the tape's
    Number span;
    int64_t begun_ns, ended_ns = 0;  // on the host's clock
    int64_t stood_ns = 0;
    int64_t lag_ns = 0;  // of the device behind the host when it began
  };
  struct Pause {
    Number op, span;
  };
  // If the device waits for the host to launch kernels, it only shows an upper bound of their time. At least this part
  // of the remaining time counts as theirs.
  static constexpr int64_t kLeastPart = 8;
  static constexpr int64_t kUnknownLag = INT64_MAX / 2;  // the host was surely not late
  Op* find(Number span) noexcept;
  bool wait() const noexcept;
  void begin_anew() noexcept;
  void clear() noexcept;

  const Backend& backend_;
  Tape& tape_;
  EventSpans spans_;
  std::vector<Op> ops_;  // in the order of their spans
  std::vector<Pause> pauses_;
  // `idle_` begins when the device is idle; `idle_ns_` is the host's time then.
  Number idle_ = 0;
  int64_t idle_ns_ = 0;
};

// Excludes the time in which it lives from the op's duration, because the device may stall for memory; nullptr: no op.
class OpPause {
 public:
  OpPause(OpDurations& durations, const RunningOp* op, driver::CUstream stream) noexcept;
  ~OpPause();
  OpPause(const OpPause&) = delete;
  OpPause& operator=(const OpPause&) = delete;

 private:
  OpDurations& durations_;
  const driver::CUstream stream_;
  EventSpans::Number span_ = 0;
};

}  // namespace um
