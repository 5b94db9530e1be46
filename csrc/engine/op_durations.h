// How long recorded ops ran on a device whose host runs ahead, by the device's own clock. What an op waits for before
// it begins is no part of it, nor is the time in which the device stood still for what is allocated within it, or for
// the host to launch it: a step that stalls, or whose host is late, is recorded as if it did not. An H100 had
// BERT-Large recorded at 70 us an op more than its kernels took, as its host was slower than they: so nothing seemed
// worth making again (profiles/measured).
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

  // A recording begins. It waits for the device, so that it is known when this was idle.
  void start() noexcept;
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
    int64_t begun_ns, ended_ns = 0;  // by the host
    int64_t stood_ns = 0;
    int64_t lag_ns = 0;  // of the device behind the host when it began
  };
  struct Pause {
    Number op, span;
  };
  // A device that waits for an op's kernels tells no more of them than that they are shorter. At least so much is
  // theirs.
  static constexpr int64_t kLeastPart = 8;
  static constexpr int64_t kUnknownLag = INT64_MAX / 2;  // nobody can say that the host was late
  Op* find(Number span) noexcept;
  bool wait() const noexcept;
  void begin_anew() noexcept;
  void clear() noexcept;

  const Backend& backend_;
  Tape& tape_;
  EventSpans spans_;
  std::vector<Op> ops_;  // in order of their spans
  std::vector<Pause> pauses_;
  Number idle_ = 0;  // begins when the device has nothing to do, and the host's time then
  int64_t idle_ns_ = 0;
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
