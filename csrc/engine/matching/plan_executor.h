// Matches the ops of steps with the programs that a device knows, and carries out the plans' actions at their ops.
//
// When an op begins, these happen in order: the last op's remaining actions, the match of the op, the actions due
// before it, and a scan by the prefetcher. Actions on managed memory after an op are carried out when it ends, because
// freed memory can then be discarded. Those on chunked memory wait until the next op begins, when frees in between have
// made space.
//
// Example: a plan swaps s3 out after op 5 and in before op 8, and swaps s7 out after op 6. If the step jumps from op 4
// to op 9, catch_up() looks at the last action on each storage in between. For s3 that is the swap-in, so s3 remains on
// the device. For s7 it is the swap-out, which is carried out now.
//
// Invariants:
// - The executor takes part in the guard's calls if and only if it knows a program.
// - Between calls, every pointer to a program is nullptr or points into programs_.
// - An action is a request and never fails an op. It counts as skipped if its allocation is unknown or it fails, and as
//   redundant if it has no effect now.
// - Ops of another thread beside the step (UM_OP_BESIDE) are neither matched nor counted.
//
// An op that no program has is passed: the cursor remains, so that the next op may match at once. No actions are due at
// a passed op, and neither its allocations nor its results are bound. The step is not exact any more, until it ends.
//
// A jump back in a program, or to the same op, catches up all actions from the program's first op to the new one, in
// place of those in between. A jump to another program catches up none. After both the prefetcher scans again at once.
// Every jump drops the postponed actions, and skipped ones are never due later.
//
// Every call requires the device's lock. Only skipped_actions_ is atomic, because the backend's helper thread
// (memory/helper.h) counts prefetches that fail.
#pragma once

#include <atomic>
#include <vector>

#include "base/thread_safety.h"
#include "engine/accounts.h"
#include "engine/budget_keeper.h"
#include "engine/matching/prefetcher.h"
#include "engine/matching/program_cursor.h"
#include "engine/matching/programs.h"
#include "engine/participant.h"
#include "engine/streams.h"
#include "engine/swapping.h"
#include "memory/migration.h"

namespace um {

class PlanExecutor final : public Participant {
 public:
  PlanExecutor(DeviceBase& base, Streams& streams, BudgetKeeper& budget, Accounts& accounts, Swapping& swapping)
      : Participant(base, kProgramTurns),
        streams_(streams),
        budget_(budget),
        accounts_(accounts),
        swapping_(swapping) {}

  // Adds a program, or replaces the one of number `program.replaces`, from the next step on. Returns its number. The
  // rest of a running step that followed the old program is not matched. The new program has the old one's number, and
  // its keys if both have as many storages. Its bindings are the old one's if no step runs, a step has begun with
  // the old program, and both have the same ops and storages; else the next step finds its allocations by their serial
  // numbers. The layout of the steps is forgotten (Layout::stop). Throws um::Error.
  uint32_t add(const um_program& program) REQUIRES(device_lock);
  // Expects the program in the next step, unless it is known already which program follows the last one. Throws
  // um::Error if there is no such program.
  void expect(uint32_t number);
  // Forgets a program, or does nothing if there is none of that number.
  void drop(uint32_t number) REQUIRES(device_lock);
  void drop_all() REQUIRES(device_lock);
  void tell(um_swap_counters* out) const REQUIRES(device_lock);
  void close() noexcept;

  void begin_op(RunningOp& op) override REQUIRES(device_lock);
  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock);
  void end_step() override REQUIRES(device_lock);
  void begin_step(uint32_t step) override REQUIRES(device_lock);
  void allocated(Block* block, const RunningOp* op) noexcept override REQUIRES(device_lock);
  void freed(Block* block) noexcept override REQUIRES(device_lock);
  using Participant::tell;

 private:
  void take_place(const Program& old, const Program& added);
  // Matches the op. If it is not the program's next one, moves the cursor to the place that Programs::seek finds, or
  // passes the op.
  void follow(const RunningOp& op) REQUIRES(device_lock);
  // Carries out the swap-outs and drops among the actions that a jump has skipped, if each is the last action there on
  // its storage and the storage is bound. Swap-ins and other actions remain undone.
  void catch_up(int32_t op_before) REQUIRES(device_lock);
  // In the first step of a program: storages that its plan has on the host when a step begins are to be evicted first.
  void begin_as_planned() REQUIRES(device_lock);
  // Calls `each` with the row of every action that is due before or after the op that began last. The context is
  // current.
  template <class Each>
  void act(bool after, const Each& each) REQUIRES(device_lock);
  void carry_out_postponed() REQUIRES(device_lock);
  void carry_out(const Program::Action& action) REQUIRES(device_lock);
  bool move(const Program::Action& action, Movable* block) REQUIRES(device_lock);
  void move_managed(const Program::Action& action, Block* block, const RunningOp& op) REQUIRES(device_lock);
  void send_prefetches(driver::CUstream stream) REQUIRES(device_lock);
  void look_ahead(const RunningOp& op) REQUIRES(device_lock);

  Streams& streams_;
  BudgetKeeper& budget_;
  Accounts& accounts_;
  Swapping& swapping_;
  Programs programs_;
  PersistentAllocations persistent_;
  ProgramCursor cursor_;
  Prefetcher prefetcher_;
  // The programs that the last step and the one before it followed at their ends.
  const Program *last_ = nullptr, *before_last_ = nullptr;
  std::vector<const Program*> unbegun_;  // programs that no step has begun with
  const Program* next_ = nullptr;        // the program that the step after this one is expected to follow
  bool last_was_exact_ = false;
  int64_t evictions_ = 0;             // of the mover, when the step began: the plan has not foreseen later ones
  bool scans_ = false;                // the prefetcher scans in all of this step
  bool begins_ = false;               // the step's first ops have not yet shown its size
  std::vector<size_t> postponed_;     // rows of actions that wait for an op that does not only create memory
  std::vector<size_t> missed_;        // catch_up() only: rows of actions
  std::vector<bool> caught_up_;       // catch_up() only, by storage
  std::vector<Block*> made_;          // end_op() only: what the op has made
  std::vector<Prefetch> prefetches_;  // that the plan requests at one op
  int64_t actions_ = 0, redundant_actions_ = 0;
  std::atomic<int64_t> skipped_actions_{0};
};

}  // namespace um
