// The position of the running step in a program, and the bindings of the program's storages to the step's allocations.
//
// An op of the step matches the program's next op if both have the same signature (program.h). The program's storages
// are then bound by place: operand i of the program's op to operand i of the step's op, and result i to result i. For
// an op that does not match, the caller seeks another position (Programs::seek) and calls move(), or else pass().
//
// Example: the program's first key is 100, and its next op is add(s7, s2). The step runs `add` on the blocks P and Q.
// Then P has the key 107 (Record::storage) and Q the key 102. If s7 was bound to another block R before, R has the key
// -1 now, and is shadowed (shadowed_bindings.h).
//
// Invariants:
// - Storage s is bound to a block if and only if block(s) is that block. The block's key is then first_key + s.
// - A block is bound to at most one storage. A bound block is live, because freed() unbinds it.
// - While driving(), program() is not nullptr and op() is -1 or one of its ops. Bindings outlast end_step(), because
//   the next begin_step() derives its own from them.
//
// Not thread-safe: callers hold the device's lock.
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
  // The result of comparing an op of the step with the program.
  enum class Match : uint8_t {
    next,   // it is the program's next op
    aside,  // it has no operands, and the program has no such op here: steps may differ in these
    other   // it is not the program's next op, and move() or pass() must follow
  };

  // ---- steps ----
  // Begins a step that is expected to follow this program. `fresh`: no step has begun with the program before, so
  // allocations are found by their serial numbers.
  void begin_step(const Program* program, const PersistentAllocations& persistent, const Allocations& allocations,
                  bool fresh);
  void end_step();
  // Between steps, replaces the program by one with the same storages and keys.
  void exchange(const Program* program) noexcept { program_ = program; }
  // Unbinds everything and forgets the program, which may be destroyed then.
  void leave() noexcept;

  // ---- ops; `given`: the operands, in order ----
  Match begin_op(uint32_t op, const std::vector<Operand>& given);
  // Moves to a position of this program or of another one, for an op that did not match. `taken_over`: the step's ops
  // until now are the first ops of that program. In another program, operands and results of ops that both programs
  // have (`Program::place_name`) are bound again, and allocations that live in every step by their serial numbers.
  // Other results of the step are remembered, and are bound once the cursor moves to a program that has their op. All
  // other bindings end.
  void move(const Program* program, size_t position, const PersistentAllocations& persistent, bool taken_over,
            const std::vector<Operand>& given);
  // Notes that no program has the op that did not match. The cursor stays where it is.
  void pass();
  // Binds the results of the op that began last. `made`: what it made and returned, in order.
  void returned(const std::vector<Block*>& made) noexcept;
  // Follows another program of the same family from now on, at the same position.
  void change_size(const Program* program, const PersistentAllocations& persistent);

  void allocated(Block* block) noexcept;
  void freed(Block* block) noexcept;
  // Returns the key that an allocation of so many bytes would get now; -1: none.
  int32_t expected_key(uint64_t bytes) const override;

  // ---- position and bindings ----
  const Program* program() const { return program_; }
  bool driving() const { return driving_; }  // a step that follows a program is running
  int32_t op() const { return op_; }         // the program's op that matched last; -1: none yet
  bool passed() const { return passed_; }    // the op that began last is not in the program
  // Returns whether an op ahead is predicted not to run in this step.
  bool skipped(int32_t op) const { return skipped_ops_.has(op); }
  // Returns false if the first op at or after `op` that uses the storage is predicted not to run in this step.
  bool wanted(int32_t storage, int32_t op) const;
  // Returns whether the plan fits the step as it is: every op matched the program's next one, the allocations that were
  // bound have about the recorded sizes, and those that the plan moves were bound as expected.
  bool exact() const { return exact_; }
  // Returns whether the step's ops before the last one were the program's first ones.
  bool unbroken() const { return unbroken_; }
  // Returns the rows of the plan's actions that are due before the op that began last, or after it.
  Program::Rows due(bool after) const;
  // Returns the storage that an allocation is bound to; -1: none.
  int32_t storage(const Block& block) const { return known(block) ? storage_of(block) : -1; }
  Block* block(int32_t storage) const { return bound_[static_cast<size_t>(storage)]; }
  // Signatures of the step's ops with operands, the last one included.
  const std::vector<uint64_t>& history() const { return history_; }
  size_t next_position() const { return next_position_; }
  // Returns the bytes that ops of this step have allocated.
  int64_t made_bytes() const { return made_bytes_; }
  // Returns the bytes that the program's ops until now have allocated, without those of skipped ops.
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
  std::vector<Block*> bound_;  // by storage; nullptr: it has no allocation, or none is known yet
  ShadowedBindings shadowed_;
  CrossProgramBindings cross_program_;
  // An allocation that an op of this step has made, and that the program does not have.
  struct Made {
    Block* block;
    uint64_t place_name;  // of the op that made it
    size_t row;           // its index among the op's results
  };
  std::map<uint64_t, Made> elsewhere_;        // by serial number
  std::unordered_set<uint64_t> seen_places_;  // place names of the ops that ran while the step followed other programs
  SkippedOps skipped_ops_;
  // straight_: every op of the step matched the program's next one. The step counts as followed if that holds to its
  // end.
  bool driving_ = false, passed_ = false, exact_ = false, straight_ = false, unbroken_ = false;
  int32_t op_ = -1;
  // The position expected next; the row of the first action that is due; the row from which allocations are matched.
  size_t next_position_ = 0, first_due_ = 0, next_event_ = 0;
  std::vector<uint64_t> history_;
  int64_t made_bytes_ = 0;
  // The first difference between the step and its program: the op's number from 1 on, the name that the program has
  // there, and the step's.
  uint32_t different_op_ = 0, expected_ = 0, found_ = 0;
  uint32_t jumps_ = 0, unknown_ops_ = 0;  // in this step
  uint64_t followed_ = 0;                 // steps
};

}  // namespace um
