// The features of a device besides its allocations. The guard calls those that are present, each in its turn. A new
// feature is one more participant.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_safety.h"
#include "engine/notes.h"
#include "engine/running_op.h"
#include "memory/arena.h"
#include "umadvise.h"

namespace um {

// The order in which participants are called, the smallest number first: when ops and steps begin, when they end, and
// when allocations are made, freed or labelled.
//
// Repetition is first: an op that begins a step is begun again, and no other participant has seen it. Events from
// before an op are collected before it. A plan's pages are paged in before the budget evicts others for the op, and
// both before chunks are swapped in. An op is recorded before its memory is touched. Its duration excludes what it
// waits for, and samples exclude the work of all other participants.
struct Turns {
  uint8_t begin, end, memory;
};
inline constexpr uint8_t kNever = 255;
inline constexpr size_t kMostParticipants = 11;
inline constexpr Turns kRepetitionTurns{0, kNever, kNever}, kEventTurns{0, 3, 0}, kProgramTurns{1, 6, 1},
    kBudgetTurns{2, kNever, kNever}, kSwapTurns{3, 5, kNever}, kRecordTurns{4, 4, 2}, kDurationTurns{5, 0, kNever},
    kSampleTurns{6, 1, 3}, kUndoTurns{7, kNever, 4}, kWorkspaceTurns{kNever, 2, kNever},
    kAccountTurns{kNever, 3, kNever};

class DeviceBase;
namespace driver {
struct DeviceEvent;
}

class Participant {
 public:
  Participant(DeviceBase& base, Turns its) : turns(its), base_(base) {}
  virtual ~Participant() = default;
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  // Called before the op's kernels are launched. Throws um::Error, and then the op does not begin.
  virtual void begin_op(RunningOp& /*op*/) REQUIRES(device_lock) {}
  virtual void end_op(RunningOp& /*op*/) noexcept REQUIRES(device_lock) {}
  // Called before and after the step's number changes; 0: no step. Throw um::Error.
  virtual void end_step() REQUIRES(device_lock) {}
  virtual void begin_step(uint32_t /*step*/) REQUIRES(device_lock) {}
  // `op` is the op within which the allocation was requested; nullptr: none.
  virtual void allocated(Block* /*block*/, const RunningOp* /*op*/) noexcept REQUIRES(device_lock) {}
  virtual void freed(Block* /*block*/) noexcept REQUIRES(device_lock) {}
  virtual void labelled(const Block& /*block*/) noexcept REQUIRES(device_lock) {}
  virtual void reset_peaks() noexcept REQUIRES(device_lock) {}
  // Adds this participant's statistics.
  virtual void tell(um_memory_stats* /*out*/) const noexcept REQUIRES(device_lock) {}

  const Turns turns;

 protected:
  DeviceBase& base_;
};

}  // namespace um
