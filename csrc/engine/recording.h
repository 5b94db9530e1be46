// Records the ops, allocations, frees and copies of a device on a tape (tape.h), from which a trace is made.
//
// A recorded op's duration is the host's time between its begin and its end, without fault services. On a device whose
// host runs ahead, OpDurations replaces it by the device's time when the tape is read.
//
// Example: an op begins at 10 us and ends at 50 us, and faults are served for 15 us meanwhile. Its row on the tape has
// a duration of 25 us.
//
// Invariants: while on(), this class takes part in the guard's calls. The tape's present allocations are those that
// were live when the recording began. Ops beside the step (UM_OP_BESIDE) are not recorded.
#pragma once

#include <algorithm>
#include <vector>

#include "base/thread_safety.h"
#include "engine/observation.h"
#include "engine/op_durations.h"
#include "engine/participant.h"
#include "engine/swapping.h"
#include "engine/tape.h"

namespace um {

class Recording final : public Participant {
 public:
  Recording(DeviceBase& base, Tape& tape, Observation& observation, Swapping& swapping)
      : Participant(base, kRecordTurns),
        durations(base, tape),
        tape_(tape),
        observation_(observation),
        swapping_(swapping) {}

  OpDurations durations;  // used if kernels do not run in the calling thread

  void set(bool on) REQUIRES(device_lock);
  template <class Row>
  uint64_t read(std::vector<Row> Tape::Rows::* rows, Row* out, uint64_t capacity) {
    durations.settle();
    const std::vector<Row>& all = tape_.rows().*rows;
    std::copy_n(all.begin(), std::min<uint64_t>(all.size(), capacity), out);
    return all.size();
  }
  uint64_t lost() const;
  // Records a copy that begins.
  void copied(um_recorded_event_kind kind, const Block& block, uint64_t address, uint64_t bytes) noexcept
      REQUIRES(device_lock);

  void begin_op(RunningOp& op) override REQUIRES(device_lock);
  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock);
  void end_step() override REQUIRES(device_lock);
  void begin_step(uint32_t step) override REQUIRES(device_lock) { tape_.set_step(step); }
  void allocated(Block* block, const RunningOp* op) noexcept override REQUIRES(device_lock) {
    tape_.allocated(*block, op != nullptr && op->recorded != 0);  // not for an op beside the step
  }
  void freed(Block* block) noexcept override REQUIRES(device_lock);
  void labelled(const Block& block) noexcept override REQUIRES(device_lock) { tape_.labelled(block); }

 private:
  bool inside() const;  // whether a recorded op of this thread runs

  Tape& tape_;
  Observation& observation_;
  Swapping& swapping_;
  uint64_t dropped_before_ = 0;
};

}  // namespace um
