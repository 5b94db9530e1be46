// A step that is to come again: its trace, the plan for it, and how far the running step has followed it. Allocations
// are told from the trace's storages by what ops do with them: an allocation that an op makes is the one that it made
// in the trace, and what it is given must be what it was given there. Not thread-safe: the device's lock is held.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/indexed_trace.h"
#include "engine/running_op.h"
#include "engine/use_order.h"
#include "memory/allocations.h"

namespace um {

class Program final : public Outlook {
 public:
  struct Action {
    um_plan_kind kind;
    Block* block;  // nullptr: not there
    uint64_t offset_bytes, bytes;
    int64_t argument;
  };

  // Copies everything. Throws um::Error when it is none.
  explicit Program(const um_program& program);
  ~Program() override = default;
  // Blocks forget it.
  void release() noexcept;

  // `allocations`: where the storages of before the first op are, the first time.
  void begin_step(const Allocations& allocations);
  void end_step();
  // The op that begins, and what it is given, in order.
  void begin_op(uint32_t op, const std::vector<Operand>& given);
  void allocated(Block* block) noexcept;
  // The storage that an allocation of so many bytes would be now; -1: none.
  int32_t to_be(uint64_t bytes) const;
  void freed(Block* block) noexcept;

  // Whether plans apply now.
  bool driving() const { return state_ == State::driving; }
  // The plan's actions for the op that began last, before it or after: the rows of the first and of the end. What was
  // for ops that did not come is before it, too.
  std::pair<size_t, size_t> actions(bool after) const {
    if (!driving() || op_ < 0 || passed_ || first_action_.empty()) return {0, 0};
    const size_t position = static_cast<size_t>(op_) * 2 + (after ? 1 : 0);
    return {first_action_[after ? position : first_before_], first_action_[position + 1]};
  }
  Action action(size_t row) const;
  int64_t next_use(const Block& block) const override;
  double op_duration() const override;

  uint64_t followed() const { return followed_; }  // steps, to their ends
  void tell(um_swap_counters* out) const;

 private:
  enum class State : uint8_t { waiting, driving, diverged };
  static constexpr uint64_t kNoRow = ~uint64_t{0};
  uint64_t row_of(uint64_t bytes) const;
  // um_trace's columns, as far as they are looked at.
  struct Columns {
    explicit Columns(const um_trace& trace);
    um_trace view{};
    std::vector<int64_t> storage_bytes, op_duration_ns;
    std::vector<int32_t> storage_successor, access_op, access_storage, event_op, event_storage;
    std::vector<uint8_t> event_kind, event_inside;
  };

  void copy_plan(const um_plan& plan);
  void index_arguments();
  void index_uses();
  bool is(int32_t op, uint32_t name, size_t count) const;
  int32_t past_idle(int32_t op) const;  // the first op from here on that must come
  bool matches(int32_t op, const std::vector<Operand>& given);
  bool is_or_becomes(Block* block, int32_t storage);
  bool stays(int32_t storage) const;
  void bind(Block* block, int32_t storage) noexcept;
  void diverge(uint32_t found);
  int32_t op_count() const { return trace_.op_count(); }
  bool known(const Block& block) const;

  const Columns columns_;
  const IndexedTrace trace_;
  std::vector<uint32_t> names_;          // by op
  std::vector<uint64_t> first_serials_;  // by storage
  std::vector<size_t> first_argument_;   // by op: into arguments_
  std::vector<int32_t> arguments_;       // storages
  std::vector<bool> idle_;               // by op: it touches nothing of the device
  std::vector<size_t> first_use_;        // by storage: into uses_
  std::vector<int32_t> uses_;            // ops
  std::vector<size_t> first_action_;     // by op, before it and after it; empty: no plan
  std::vector<bool> moves_;              // by storage: an action of the plan is about it; empty: no plan
  std::vector<int32_t> action_storage_;
  std::vector<uint8_t> action_kind_;
  std::vector<int64_t> action_offset_, action_bytes_, action_argument_;

  State state_ = State::waiting;
  int32_t op_ = -1;
  size_t first_before_ = 0;  // position of the first action that is due before that op
  bool passed_ = false;      // the op that began last is none of the trace's
  uint64_t next_event_ = 0;
  std::vector<Block*> bound_;  // by storage; nullptr: not there, or not known yet
  bool begun_ = false;         // a step has begun with it
  uint32_t diverged_op_ = 0, expected_ = 0, found_ = 0;
  uint64_t followed_ = 0;
};

}  // namespace um
