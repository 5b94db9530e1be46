// Who takes part in what a device does, beside its allocations: the guard calls those that are present, each in its
// turn, and nobody asks for one that is absent. Whatever a device learns to do is one more of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/notes.h"
#include "engine/running_op.h"
#include "memory/arena.h"
#include "umadvise.h"

namespace um {

// Whose turn comes first, the smaller number's: when ops and steps begin, when they end, and when allocations come and
// go. What happened before an op is told before it; a plan's pages come before those that the budget makes room for,
// and both before chunks do. An op is on record before it touches anything, its duration is without what it waits for,
// and samples are without what anybody else does. An op that a step begins with begins once more: nobody has seen it.
struct Turns {
  uint8_t begin, end, memory;
};
inline constexpr uint8_t kNever = 255;
inline constexpr size_t kMostParticipants = 11;
inline constexpr Turns kRepetitionTurns{0, kNever, kNever}, kEventTurns{0, 3, 0}, kProgramTurns{1, 6, 1},
    kBudgetTurns{2, kNever, kNever}, kSwapTurns{3, 5, kNever}, kRecordTurns{4, 4, 2}, kDurationTurns{5, 0, kNever},
    kSampleTurns{6, 1, 3}, kUndoTurns{7, kNever, 4}, kWorkspaceTurns{kNever, 2, kNever},
    kAccountTurns{kNever, 3, kNever};

// The device's lock is held for every call.
class Participant {
 public:
  Participant(um_device& device, Turns its) : turns(its), device_(device) {}
  virtual ~Participant() = default;
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  // Before its kernel is launched. Throws um::Error: then the op does not begin.
  virtual void begin_op(RunningOp& /*op*/) {}
  virtual void end_op(RunningOp& /*op*/) noexcept {}
  // Before the step's number changes, and after; 0 is none. Throw um::Error.
  virtual void end_step() {}
  virtual void begin_step(uint32_t /*step*/) {}
  // `op`: that asked for it; nullptr: none did.
  virtual void allocated(Block* /*block*/, const RunningOp* /*op*/) noexcept {}
  virtual void freed(Block* /*block*/) noexcept {}
  virtual void labelled(const Block& /*block*/) noexcept {}
  virtual void reset_peaks() noexcept {}
  // Adds what it has.
  virtual void tell(um_memory_stats* /*out*/) const noexcept {}

  const Turns turns;

 protected:
  um_device& device_;
};

// Notes what libraries keep for themselves (workspaces.cpp). Where the CPU may use memory as it lies, nobody needs to
// know.
std::unique_ptr<Participant> workspaces(um_device& device);

}  // namespace um
