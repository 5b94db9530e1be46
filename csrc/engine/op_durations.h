// How long recorded ops ran on a device whose host runs ahead, by the device's own clock. What an op waits for before
// it begins is no part of it, nor is the time in which the device stood still for what is allocated within it: a step
// that stalls is recorded as if it did not.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/event_spans.h"
#include "engine/participant.h"
#include "engine/tape.h"

namespace um {

class OpDurations final : public Participant {
 public:
  OpDurations(um_device& device, Tape& tape);

  // Tells the tape of all ops that have ended. Those that still run in other threads keep the host's times.
  void settle() noexcept;
  // Before the device closes.
  void destroy() noexcept;

  void begin_op(RunningOp& op) override;
  void end_op(RunningOp& op) noexcept override;
  void end_step() override;

 private:
  friend class OpPause;
  using Number = EventSpans::Number;
  static constexpr size_t kMostUnsettled = size_t{1} << 16;  // stretches of ops, when a step ends
  struct Op {
    uint64_t ticket;  // the tape's
    Number span;
    int64_t stood_ns = 0;
  };
  struct Pause {
    Number op, span;
  };
  void clear() noexcept;

  const Backend& backend_;
  Tape& tape_;
  EventSpans spans_;
  std::vector<Op> ops_;  // in order of their spans
  std::vector<Pause> pauses_;
};

// The device may stand still for the op meanwhile; nullptr: for none.
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
