#include "engine/program.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>

#include "base/error.h"

namespace um {

namespace {

template <class Column>
std::vector<Column> copied(const Column* column, uint64_t count) {
  return std::vector<Column>(column, column + count);
}

}  // namespace

Program::Columns::Columns(const um_trace& trace) {
  const auto copy = [&](auto& column, auto um_trace::* rows, uint64_t um_trace::* count) {
    column = copied(trace.*rows, trace.*count);
    view.*rows = column.data();
    view.*count = trace.*count;
  };
  copy(op_duration_ns, &um_trace::op_duration_ns, &um_trace::op_count);
  copy(storage_bytes, &um_trace::storage_bytes, &um_trace::storage_count);
  copy(storage_successor, &um_trace::storage_successor, &um_trace::storage_count);
  copy(access_op, &um_trace::access_op, &um_trace::access_count);
  copy(access_storage, &um_trace::access_storage, &um_trace::access_count);
  copy(event_op, &um_trace::event_op, &um_trace::event_count);
  copy(event_storage, &um_trace::event_storage, &um_trace::event_count);
  copy(event_kind, &um_trace::event_kind, &um_trace::event_count);
  copy(event_inside, &um_trace::event_inside, &um_trace::event_count);
}

Program::Program(const um_program& program)
    : columns_(*program.trace),
      trace_(columns_.view),
      names_(copied(program.op_name, program.trace->op_count)),
      first_serials_(copied(program.first_serials, program.trace->storage_count)),
      idle_(program.trace->op_count, true),
      bound_(program.trace->storage_count) {
  if (program.plan != nullptr) copy_plan(*program.plan);
  index_arguments();
  index_uses();
}

void Program::copy_plan(const um_plan& plan) {
  int64_t last = 0;
  first_action_.resize(static_cast<size_t>(op_count()) * 2 + 1);
  for (uint64_t row = 0; row < plan.count; ++row) {
    const int64_t position = int64_t{plan.op[row]} * 2 + (plan.after[row] != 0 ? 1 : 0);
    const bool inside = plan.op[row] >= 0 && plan.op[row] < trace_.op_count() && plan.storage[row] >= 0 &&
                        plan.storage[row] < trace_.storage_count() && plan.kind[row] <= UM_PLAN_RECOMPUTE;
    const bool whole = inside && plan.offset_bytes[row] >= 0 && plan.bytes[row] >= 0 &&
                       plan.bytes[row] <= trace_.bytes(plan.storage[row]) - plan.offset_bytes[row];
    if (!whole || position < last) {
      throw Error(UM_INVALID_ARGUMENT, "action " + std::to_string(row) +
                                           " of the plan: the trace has no such op, storage or bytes, or actions are "
                                           "not in the order of their anchors");
    }
    last = position;
    ++first_action_[static_cast<size_t>(position) + 1];
  }
  std::partial_sum(first_action_.begin(), first_action_.end(), first_action_.begin());
  action_storage_ = copied(plan.storage, plan.count);
  moves_.resize(bound_.size());
  for (const int32_t storage : action_storage_) moves_[static_cast<size_t>(storage)] = true;
  action_kind_ = copied(plan.kind, plan.count);
  action_offset_ = copied(plan.offset_bytes, plan.count);
  action_bytes_ = copied(plan.bytes, plan.count);
  action_argument_ = copied(plan.argument, plan.count);
}

// An op's accesses in the trace are to what it was given, then to what it made and returned.
void Program::index_arguments() {
  std::vector<int32_t> birth(bound_.size(), -1);
  for (uint64_t row = 0; row < columns_.event_kind.size(); ++row) {
    const bool made = columns_.event_kind[row] == kAllocate && columns_.event_inside[row] != 0;
    if (!made) continue;
    birth[static_cast<size_t>(columns_.event_storage[row])] = columns_.event_op[row];
    if (columns_.event_op[row] >= 0) idle_[static_cast<size_t>(columns_.event_op[row])] = false;
  }
  for (int32_t op = 0; op < op_count(); ++op) {
    first_argument_.push_back(arguments_.size());
    for (uint64_t row = trace_.first_access(op); row < trace_.first_access(op + 1); ++row) {
      const int32_t storage = columns_.access_storage[row];
      if (birth[static_cast<size_t>(storage)] != op) arguments_.push_back(storage);
    }
    if (arguments_.size() > first_argument_.back()) idle_[static_cast<size_t>(op)] = false;
  }
  first_argument_.push_back(arguments_.size());
}

void Program::index_uses() {
  std::vector<size_t> counts(bound_.size() + 1);
  for (const int32_t storage : columns_.access_storage) ++counts[static_cast<size_t>(storage) + 1];
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  first_use_ = counts;
  uses_.resize(columns_.access_storage.size());
  for (size_t row = 0; row < columns_.access_storage.size(); ++row) {  // in the order of the ops
    uses_[counts[static_cast<size_t>(columns_.access_storage[row])]++] = columns_.access_op[row];
  }
}

// ---- following ---------------------------------------------------------------------------------------------

bool Program::known(const Block& block) const {
  return block.record.storage >= 0 && bound_[static_cast<size_t>(block.record.storage)] == &block;
}

void Program::bind(Block* block, int32_t storage) noexcept {
  if (block != nullptr) block->record.storage = storage;
  bound_[static_cast<size_t>(storage)] = block;
}

void Program::release() noexcept {
  for (Block* block : bound_) {
    if (block != nullptr) block->record.storage = -1;
  }
  std::fill(bound_.begin(), bound_.end(), nullptr);
}

void Program::begin_step(const Allocations& allocations) {
  std::vector<Block*> before(bound_.size());
  if (begun_) {
    for (int32_t storage = 0; storage < trace_.storage_count(); ++storage) {
      const int32_t from = trace_.continued_from(storage);
      if (from >= 0) before[static_cast<size_t>(storage)] = bound_[static_cast<size_t>(from)];
    }
  } else {
    std::unordered_map<uint64_t, int32_t> storages;
    for (size_t storage = 0; storage < first_serials_.size(); ++storage) {
      if (first_serials_[storage] != 0) storages.emplace(first_serials_[storage], static_cast<int32_t>(storage));
    }
    allocations.each_block([&](Block& block) {
      const auto found = storages.find(block.record.serial);
      if (found != storages.end()) before[static_cast<size_t>(found->second)] = &block;
    });
    begun_ = true;
  }
  release();
  for (size_t storage = 0; storage < before.size(); ++storage) {
    const bool same = before[storage] != nullptr &&
                      static_cast<int64_t>(before[storage]->record.bytes) == columns_.storage_bytes[storage];
    if (same) bind(before[storage], static_cast<int32_t>(storage));
  }
  state_ = State::driving;
  op_ = -1;
  passed_ = false;
  next_event_ = trace_.first_event(-1);
}

void Program::end_step() {
  if (!driving()) return;
  if (past_idle(op_ + 1) != op_count()) return diverge(0);  // it ended early
  ++followed_;
  state_ = State::waiting;
}

// Ops that touch nothing of the device come and go: data loaders and loggers run them when they have something.
void Program::begin_op(uint32_t op, const std::vector<Operand>& given) {
  if (state_ != State::driving) return;
  int32_t next = op_ + 1;
  while (next < op_count() && !is(next, op, given.size()) && idle_[static_cast<size_t>(next)]) ++next;
  const bool found = next < op_count() && is(next, op, given.size());
  passed_ = !found && given.empty();
  if (passed_) return;
  if (!found || !matches(next, given)) return diverge(op);
  first_before_ = static_cast<size_t>(op_ + 1) * 2;
  op_ = next;
  next_event_ = trace_.first_event(op_);
}

bool Program::is(int32_t op, uint32_t name, size_t count) const {
  const size_t at = static_cast<size_t>(op);
  return names_[at] == name && first_argument_[at + 1] - first_argument_[at] == count;
}

int32_t Program::past_idle(int32_t op) const {
  while (op < op_count() && idle_[static_cast<size_t>(op)]) ++op;
  return op;
}

bool Program::matches(int32_t op, const std::vector<Operand>& given) {
  const size_t first = first_argument_[static_cast<size_t>(op)], end = first_argument_[static_cast<size_t>(op) + 1];
  for (size_t row = first; row < end; ++row) {
    if (!is_or_becomes(given[row - first].block, arguments_[row])) return false;
  }
  return true;
}

// What was there before the step, or was made outside of ops, is known from its first use on. Several of one size may
// take each other's places where the plan moves none of them: nobody can tell the small tensors of two batches apart.
bool Program::is_or_becomes(Block* block, int32_t storage) {
  Block* const bound = bound_[static_cast<size_t>(storage)];
  if (bound == block) return true;
  if (static_cast<int64_t>(block->record.bytes) != trace_.bytes(storage)) return false;
  if (known(*block)) return stays(storage) && stays(block->record.storage);
  if (bound != nullptr) return stays(storage);
  bind(block, storage);
  return true;
}

// Without a plan it is the order of uses that counts.
bool Program::stays(int32_t storage) const { return !moves_.empty() && !moves_[static_cast<size_t>(storage)]; }

void Program::diverge(uint32_t found) {
  const int32_t next = past_idle(op_ + 1);
  state_ = State::diverged;
  diverged_op_ = static_cast<uint32_t>(next + 1);
  expected_ = next < op_count() ? names_[static_cast<size_t>(next)] : 0;
  found_ = found;
}

// The next allocation of this op, or after it, that has the size: libraries may take scratch memory or not.
void Program::allocated(Block* block) noexcept {
  block->record.storage = -1;
  const uint64_t row = row_of(block->record.bytes);
  if (row == kNoRow) return;
  bind(block, columns_.event_storage[row]);
  next_event_ = row + 1;
}

int32_t Program::to_be(uint64_t bytes) const {
  const uint64_t row = row_of(bytes);
  return row == kNoRow ? -1 : columns_.event_storage[row];
}

// The event at which an allocation of that size is made next.
uint64_t Program::row_of(uint64_t bytes) const {
  const uint64_t end = driving() ? trace_.first_event(op_ + 1) : 0;
  for (uint64_t row = next_event_; row < end; ++row) {
    const int32_t storage = columns_.event_storage[row];
    const bool made = columns_.event_kind[row] == kAllocate && bound_[static_cast<size_t>(storage)] == nullptr;
    if (made && trace_.bytes(storage) == static_cast<int64_t>(bytes)) return row;
  }
  return kNoRow;
}

void Program::freed(Block* block) noexcept {
  if (known(*block)) bound_[static_cast<size_t>(block->record.storage)] = nullptr;
  block->record.storage = -1;
}

// ---- what the plan and the trace say -----------------------------------------------------------------------

Program::Action Program::action(size_t row) const {
  return {static_cast<um_plan_kind>(action_kind_[row]), bound_[static_cast<size_t>(action_storage_[row])],
          static_cast<uint64_t>(action_offset_[row]), static_cast<uint64_t>(action_bytes_[row]), action_argument_[row]};
}

int64_t Program::next_use(const Block& block) const {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  if (state_ != State::driving || !known(block)) return kNever;
  const auto storage = static_cast<size_t>(block.record.storage);
  const auto end = uses_.begin() + static_cast<std::ptrdiff_t>(first_use_[storage + 1]);
  const auto next = std::upper_bound(uses_.begin() + static_cast<std::ptrdiff_t>(first_use_[storage]), end, op_);
  if (next != end) return *next - op_;
  const int32_t later = trace_.continues_as(static_cast<int32_t>(storage));
  if (later < 0) return kNever;
  const size_t first = first_use_[static_cast<size_t>(later)];
  if (first == first_use_[static_cast<size_t>(later) + 1]) return kNever;
  return int64_t{op_count()} - op_ + uses_[first];
}

// Ops that the trace did not time or does not know are short.
double Program::op_duration() const {
  const bool told = driving() && op_ >= 0 && !passed_;
  return static_cast<double>(std::max<int64_t>(told ? columns_.op_duration_ns[static_cast<size_t>(op_)] : 0, 1));
}

void Program::tell(um_swap_counters* out) const {
  out->program = state_ == State::driving    ? UM_PROGRAM_DRIVING
                 : state_ == State::diverged ? UM_PROGRAM_DIVERGED
                                             : UM_PROGRAM_WAITING;
  out->programs_followed = followed_;
  out->diverged_op = diverged_op_;
  out->diverged_expected = expected_;
  out->diverged_found = found_;
}

}  // namespace um
