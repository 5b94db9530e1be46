// Follows a program: what its plan asks for, when the op comes that it is for.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "engine/participant.h"
#include "engine/program.h"
#include "memory/migration.h"

namespace um {

class Follower final : public Participant {
 public:
  explicit Follower(um_device& device) : Participant(device, kProgramTurns) {}

  void set(const um_program* program);  // nullptr: none. Throws um::Error.
  // What the program says an allocation of so many bytes would be now; -1: nothing.
  int32_t to_be(uint64_t bytes, const RunningOp* op) const;
  void tell(um_swap_counters* out) const;
  void close() noexcept { program_.reset(); }

  void begin_op(RunningOp& op) override;
  void end_op(RunningOp& op) noexcept override;
  void end_step() override;
  void begin_step(uint32_t step) override;
  void allocated(Block* block, const RunningOp* op) noexcept override;
  void freed(Block* block) noexcept override { program_->freed(block); }
  using Participant::tell;

 private:
  // The row of each of the program's actions before or after the op that began last, with the context current.
  template <class Each>
  void act(bool after, const Each& each);
  void carry_out_postponed();
  void carry_out(const Program::Action& action);
  bool move(const Program::Action& action);
  void move_managed(const Program::Action& action, driver::CUstream stream);
  void send_prefetches(driver::CUstream stream);

  std::unique_ptr<Program> program_;  // while this takes part
  std::vector<size_t> postponed_;     // rows of its actions, until an op comes that uses something
  std::vector<Prefetch> prefetches_;  // that a plan asks for at one point
  uint64_t programs_followed_ = 0;    // of programs that are gone
  int64_t actions_ = 0, redundant_actions_ = 0;
  std::atomic<int64_t> skipped_actions_{0};
};

}  // namespace um
