// Follows the programs that a device knows: what their plans ask for, when the op comes that it is for, and what comes
// and leaves ahead of time where they ask for nothing.
#pragma once

#include <atomic>
#include <vector>

#include "engine/matching/prefetcher.h"
#include "engine/matching/program_cursor.h"
#include "engine/matching/programs.h"
#include "engine/participant.h"
#include "memory/migration.h"

namespace um {

class PlanExecutor final : public Participant {
 public:
  explicit PlanExecutor(um_device& device) : Participant(device, kProgramTurns) {}

  // From the next step on, beside those that there are or in the place of one; returns its number. Throws um::Error.
  uint32_t add(const um_program& program);
  void expect(uint32_t number);  // throws um::Error
  void drop(uint32_t number);
  void drop_all();
  // What an allocation of so many bytes will be called (Record::storage); -1: nobody knows.
  int32_t expected_key(uint64_t bytes, const RunningOp* op) const;
  void tell(um_swap_counters* out) const;
  void close() noexcept;

  void begin_op(RunningOp& op) override;
  void end_op(RunningOp& op) noexcept override;
  void end_step() override;
  void begin_step(uint32_t step) override;
  void allocated(Block* block, const RunningOp* op) noexcept override;
  void freed(Block* block) noexcept override;
  using Participant::tell;

 private:
  void take_place(const Program& old, const Program& added);
  void follow(const RunningOp& op);
  void catch_up(int32_t op_before);
  void begin_as_planned();
  // The row of each action that is due before or after the op that began last, with the context current.
  template <class Each>
  void act(bool after, const Each& each);
  void carry_out_postponed();
  void carry_out(const Program::Action& action);
  bool move(const Program::Action& action, Movable* block);
  void move_managed(const Program::Action& action, Block* block, const RunningOp& op);
  void send_prefetches(driver::CUstream stream);
  void look_ahead(const RunningOp& op);

  Programs programs_;
  PersistentAllocations persistent_;
  ProgramCursor cursor_;
  Prefetcher prefetcher_;
  // That the step before was like in the end, and the one before that.
  const Program *last_ = nullptr, *before_last_ = nullptr;
  std::vector<const Program*> unbegun_;  // that no step has begun with
  const Program* next_ = nullptr;        // that the step after this one is expected to be like
  bool last_was_exact_ = false;
  int64_t evictions_ = 0;             // that had been when the step began: later ones are none of the plan's
  bool scans_ = false;                // ahead, in all of this step
  bool begins_ = false;               // of which size the step is is not known yet
  std::vector<size_t> postponed_;     // rows of actions, until an op comes that uses something
  std::vector<size_t> missed_;        // rows of actions: of catch_up
  std::vector<bool> caught_up_;       // by storage: of catch_up
  std::vector<Block*> made_;          // of end_op
  std::vector<Prefetch> prefetches_;  // that a plan asks for at one point
  int64_t actions_ = 0, redundant_actions_ = 0;
  std::atomic<int64_t> skipped_actions_{0};
};

}  // namespace um
