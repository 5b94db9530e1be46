// How far the running step has come in a program, and which allocation each of the program's storages is in it. What an
// op is given is what the program's op was given there, and what it returns is what that one returned. Not thread-safe:
// the device's lock is held.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include "engine/matching/cross_program_bindings.h"
#include "engine/matching/persistent_allocations.h"
#include "engine/matching/program.h"
#include "engine/matching/shadowed_bindings.h"
#include "engine/matching/skipped_ops.h"
#include "engine/running_op.h"
#include "engine/use_order.h"
#include "memory/allocations.h"

namespace um {

class ProgramCursor final : public Outlook {
 public:
  // An op of a step that begins.
  enum class Match : uint8_t {
    next,   // the program's next one
    aside,  // it is given nothing and the program has none such here: these come and go
    other   // to be sought: move() or pass() follows
  };

  // ---- steps ----
  // A step begins that is to be like this program's, the first one with it where `fresh`.
  void begin_step(const Program* program, const PersistentAllocations& persistent, const Allocations& allocations,
                  bool fresh);
  void end_step();
  // Between steps: this program of the same storages, with the same keys, takes the place of the one that it is in.
  void exchange(const Program* program) noexcept { program_ = program; }
  // Programs are about to go: it is in none.
  void leave() noexcept;

  // ---- ops; what an op is given, in order ----
  Match begin_op(uint32_t op, const std::vector<Operand>& given);
  // The op is that one, of this program or of another one, whose storages are those of the ops until now where
  // `taken_over`.
  void move(const Program* program, size_t position, const PersistentAllocations& persistent, bool taken_over,
            const std::vector<Operand>& given);
  // No program has it here.
  void pass();
  // What the op that began last has made and returned, in order.
  void returned(const std::vector<Block*>& made) noexcept;
  // Another program of the same family is the one from now on.
  void change_size(const Program* program, const PersistentAllocations& persistent);

  void allocated(Block* block) noexcept;
  void freed(Block* block) noexcept;
  // The storage's key that an allocation of so many bytes would have now; -1: none.
  int32_t expected_key(uint64_t bytes) const;

  // ---- where it is ----
  const Program* program() const { return program_; }
  bool driving() const { return driving_; }
  int32_t op() const { return op_; }       // that began last; -1: none yet
  bool passed() const { return passed_; }  // the one that began last is none of the program's
  // That op is ahead and will not come, by what has not come until now.
  bool skipped(int32_t op) const { return skipped_ops_.has(op); }
  // The next op that uses the storage in the program, from that one on, will come; or none of this step's does.
  bool wanted(int32_t storage, int32_t op) const;
  // Every op until now was the program's next one, of about the program's sizes where the plan moves something.
  bool exact() const { return exact_; }
  // The step's ops before the last one were the program's first.
  bool unbroken() const { return unbroken_; }
  // The plan's actions that are due before the op that began last, and after it.
  Program::Rows due(bool after) const;
  // Of the program's storages the one that an allocation is; -1: none.
  int32_t storage(const Block& block) const { return known(block) ? storage_of(block) : -1; }
  Block* block(int32_t storage) const { return bound_[static_cast<size_t>(storage)]; }
  // Signatures of the step's ops that were given something, the last one included.
  const std::vector<uint64_t>& history() const { return history_; }
  size_t next_position() const { return next_position_; }
  int64_t made_bytes() const { return made_bytes_; }
  // What the program's ops would have made by now, but for those that were left out.
  int64_t planned_bytes() const { return program_->made_bytes(op_) - skipped_ops_.made_bytes(); }

  int64_t next_use(const Block& block) const override;
  double op_duration() const override;
  void tell(um_swap_counters* out) const;

 private:
  bool known(const Block& block) const;
  int32_t storage_of(const Block& block) const { return block.record.storage - program_->first_key; }
  void bind(Block* block, int32_t storage) noexcept;
  void release() noexcept;
  void enter(const Program* program, const PersistentAllocations& persistent);
  bool moves(int32_t storage, const Block& block) const;
  void exchange_for(const Program* program, size_t position, const PersistentAllocations& persistent);
  void remember(const Program& before, const std::vector<Block*>& bound);
  void recall(size_t position);
  void give(const std::vector<Operand>& given);
  void advance(int32_t op);
  void note_difference(uint32_t found);
  size_t row_of(uint64_t bytes) const;

  const Program* program_ = nullptr;
  std::vector<Block*> bound_;  // by storage; nullptr: not there, or not known yet
  ShadowedBindings shadowed_;
  CrossProgramBindings cross_program_;
  // What an op of this step has made that the program does not have, by its serial number.
  struct Made {
    Block* block;
    uint64_t place_name;  // of the op
    size_t row;           // of its results
  };
  std::map<uint64_t, Made> elsewhere_;
  std::unordered_set<uint64_t> seen_places_;  // place names of the ops of this step, up to its last program
  SkippedOps skipped_ops_;
  bool driving_ = false, passed_ = false, exact_ = false, straight_ = false, unbroken_ = false;
  int32_t op_ = -1;
  size_t next_position_ = 0, first_due_ = 0, next_event_ = 0;
  std::vector<uint64_t> history_;
  int64_t made_bytes_ = 0;
  // Of the last step.
  uint32_t different_op_ = 0, expected_ = 0, found_ = 0;
  uint32_t jumps_ = 0, unknown_ops_ = 0;
  uint64_t followed_ = 0;
};

}  // namespace um
