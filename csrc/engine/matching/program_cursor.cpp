#include "engine/matching/program_cursor.h"

#include <algorithm>
#include <cstdlib>
#include <unordered_map>

namespace um {

namespace {

// An allocation is as large as a storage if it differs by at most a twelfth, or by 256 KiB. A plan is as good for a
// step that differs so little, such as one with a cache that has grown. If many small differences add up, memory runs
// short, and evictions show that the plan does not fit.
constexpr int64_t kNearPart = 12, kNearBytes = int64_t{256} << 10;

bool as_large(const Block& block, int64_t bytes) {
  return std::abs(static_cast<int64_t>(block.record.bytes) - bytes) <= std::max(bytes / kNearPart, kNearBytes);
}

}  // namespace

// ---- bindings ---------------------------------------------------------------------------------------------------

bool ProgramCursor::known(const Block& block) const {
  const int64_t storage = int64_t{block.record.storage} - (program_ != nullptr ? program_->first_key : 0);
  return program_ != nullptr && block.record.storage >= 0 && storage >= 0 && storage < program_->storage_count() &&
         bound_[static_cast<size_t>(storage)] == &block;
}

void ProgramCursor::bind(Block* block, int32_t storage) noexcept {
  Block*& bound = bound_[static_cast<size_t>(storage)];
  if (bound == block) return;
  shadowed_.remove(*block);
  if (!elsewhere_.empty()) elsewhere_.erase(block->record.serial);
  if (known(*block)) bound_[static_cast<size_t>(storage_of(*block))] = nullptr;
  if (bound != nullptr) {
    bound->record.storage = -1;
    shadowed_.add(bound, storage);
  }
  block->record.storage = program_->first_key + storage;
  bound = block;
}

void ProgramCursor::release() noexcept {
  for (Block* block : bound_) {
    if (block != nullptr) block->record.storage = -1;
  }
  bound_.clear();
  shadowed_.clear();
}

// Follows a program with nothing bound but the persistent allocations.
void ProgramCursor::enter(const Program* program, const PersistentAllocations& persistent) {
  release();
  program_ = program;
  skipped_ops_.begin(*program);
  bound_.assign(static_cast<size_t>(program->storage_count()), nullptr);
  for (const int32_t storage : program->persistent_storages()) {
    if (Block* const block = persistent.find(program->first_serial(storage))) bind(block, storage);
  }
}

void ProgramCursor::leave() noexcept {
  release();
  elsewhere_.clear();
  seen_places_.clear();
  cross_program_.forget_carried();
  program_ = nullptr;
  driving_ = false;
}

// Binds the allocations that live on from the last step: in a program of the same family by the continuations in the
// trace, in another program by what earlier steps have shown. Allocations made outside of the step's ops are bound at
// their first use.
void ProgramCursor::begin_step(const Program* program, const PersistentAllocations& persistent,
                               const Allocations& allocations, bool fresh) {
  std::vector<Block*> before(static_cast<size_t>(program->storage_count()));
  cross_program_.forget_carried();
  if (fresh) {
    std::unordered_map<uint64_t, int32_t> storages;
    for (int32_t storage = 0; storage < program->storage_count(); ++storage) {
      const uint64_t serial = program->first_serial(storage);
      if (serial != 0 && !program->persistent(storage)) storages.emplace(serial, storage);
    }
    allocations.each_block([&](Block& block) {
      const auto found = storages.find(block.record.serial);
      if (found != storages.end()) before[static_cast<size_t>(found->second)] = &block;
    });
  } else if (program_ != nullptr && program_->family() == program->family()) {
    for (int32_t storage = 0; storage < program->storage_count(); ++storage) {
      const int32_t from = program->continued_from(storage);
      if (from < 0 || static_cast<size_t>(from) >= bound_.size()) continue;
      before[static_cast<size_t>(storage)] = bound_[static_cast<size_t>(from)];
    }
  } else if (program_ != nullptr) {
    cross_program_.remember(*program_, bound_);
    cross_program_.each_known(*program,
                              [&](Block* block, int32_t storage) { before[static_cast<size_t>(storage)] = block; });
  }
  elsewhere_.clear();
  seen_places_.clear();
  enter(program, persistent);
  driving_ = exact_ = straight_ = unbroken_ = true;
  for (int32_t storage = 0; storage < program->storage_count(); ++storage) {
    Block* const block = before[static_cast<size_t>(storage)];
    if (block == nullptr || bound_[static_cast<size_t>(storage)] != nullptr || known(*block)) continue;
    bind(block, storage);
    exact_ = exact_ && as_large(*block, program->bytes(storage));
  }
  passed_ = false;
  op_ = -1;
  next_position_ = first_due_ = 0;
  next_event_ = program->events(-1).first;
  history_.clear();
  made_bytes_ = 0;
  different_op_ = expected_ = found_ = jumps_ = unknown_ops_ = 0;
}

void ProgramCursor::end_step() {
  if (!driving_) return;
  driving_ = false;
  if (program_->past_idle(op_ + 1) != program_->op_count()) note_difference(0);  // the step ended early
  if (straight_) ++followed_;
}

void ProgramCursor::note_difference(uint32_t found) {
  exact_ = false;
  if (!straight_) return;
  straight_ = false;
  const int32_t next = program_->past_idle(op_ + 1);
  different_op_ = static_cast<uint32_t>(next + 1);
  expected_ = next < program_->op_count() ? program_->name(next) : 0;
  found_ = found;
}

// ---- ops -------------------------------------------------------------------------------------------------------

ProgramCursor::Match ProgramCursor::begin_op(uint32_t op, const std::vector<Operand>& given) {
  passed_ = false;
  if (given.empty()) {
    int32_t next = op_ + 1;
    const auto is = [&] { return program_->name(next) == op && !program_->matchable(next); };
    while (next < program_->op_count() && !is() && program_->idle(next)) ++next;
    passed_ = next == program_->op_count() || !is();
    if (!passed_) advance(next);
    return passed_ ? Match::aside : Match::next;
  }
  const auto persistent =
      std::find_if(given.begin(), given.end(), [](const Operand& each) { return each.block->record.persistent; });
  history_.push_back(signature_of(op, given.size(), persistent != given.end() ? persistent->block->record.serial : 0));
  if (next_position_ < program_->matchable_ops().size() && program_->signatures()[next_position_] == history_.back()) {
    const int32_t next = program_->matchable_ops()[next_position_];
    if (program_->past_idle(op_ + 1) != next) note_difference(op);  // an op in between, which makes memory, has not run
    advance(next);
    skipped_ops_.note_seen(next);
    ++next_position_;
    give(given);
    return Match::next;
  }
  note_difference(op);
  return Match::other;
}

// Actions that were due before ops that did not run are due before this one.
void ProgramCursor::advance(int32_t op) {
  first_due_ = program_->first_action(op_ + 1, false);
  op_ = op;
  next_event_ = program_->events(op).first;
}

bool ProgramCursor::moves(int32_t storage, const Block& block) const {
  return !program_->planned() || program_->moves(storage) || (known(block) && program_->moves(storage_of(block)));
}

void ProgramCursor::give(const std::vector<Operand>& given) {
  const auto [first, end] = program_->arguments(op_);
  for (size_t row = first; row < end; ++row) {
    Block* const block = given[row - first].block;
    const int32_t storage = program_->touched(row);
    if (bound_[static_cast<size_t>(storage)] == block) continue;
    const bool new_here = bound_[static_cast<size_t>(storage)] == nullptr && !known(*block);
    const bool same_size = as_large(*block, program_->bytes(storage));
    if (!same_size || (!new_here && moves(storage, *block))) exact_ = false;
    bind(block, storage);
    cross_program_.learn(block, *program_, storage);
  }
}

// Carries the bindings over: the operands and results of the old program's ops are bound to those of the new program's
// ops with the same place names. Results that the new program does not have are remembered, and recalled in a program
// that has them.
void ProgramCursor::exchange_for(const Program* program, size_t position, const PersistentAllocations& persistent) {
  const Program& before = *program_;
  const std::vector<Block*> bound = bound_;
  const std::vector<bool> come = skipped_ops_.seen();
  enter(program, persistent);
  const auto carry = [&](Program::Rows from, Program::Rows to) {
    for (size_t row = 0; row < std::min(from.second - from.first, to.second - to.first); ++row) {
      Block* const block = bound[static_cast<size_t>(before.touched(from.first + row))];
      if (block != nullptr) bind(block, program->touched(to.first + row));
    }
  };
  for (size_t index = 0; index < before.matchable_ops().size(); ++index) {
    const int32_t op = before.matchable_ops()[index];
    if (!come[static_cast<size_t>(op)]) continue;
    seen_places_.insert(before.place_name(index));
    const size_t place = program->position_of_name(before.place_name(index));
    if (index >= next_position_ || place >= position) continue;
    const int32_t other = program->matchable_ops()[place];
    carry(before.arguments(op), program->arguments(other));
    carry(before.results(op), program->results(other));
  }
  for (size_t place = 0; place < position; ++place) {
    if (seen_places_.count(program->place_name(place)) > 0) skipped_ops_.note_seen(program->matchable_ops()[place]);
  }
  recall(position);
  remember(before, bound);
}

void ProgramCursor::remember(const Program& before, const std::vector<Block*>& bound) {
  for (int32_t storage = 0; storage < before.storage_count(); ++storage) {
    Block* const block = bound[static_cast<size_t>(storage)];
    const int32_t maker = before.maker(storage);
    if (block == nullptr || known(*block) || maker < 0 || !before.matchable(maker)) continue;
    const auto [first, end] = before.results(maker);
    for (size_t row = first; row < end; ++row) {
      if (before.touched(row) != storage) continue;
      elsewhere_[block->record.serial] = {block, before.place_name(before.position_of(maker)), row - first};
    }
  }
}

void ProgramCursor::recall(size_t position) {
  const std::map<uint64_t, Made> elsewhere = elsewhere_;
  for (const auto& [serial, made] : elsewhere) {
    const size_t place = program_->position_of_name(made.place_name);
    if (place >= position) continue;
    const int32_t op = program_->matchable_ops()[place];
    const auto [first, end] = program_->results(op);
    const size_t row = first + made.row;
    if (row < end && bound_[static_cast<size_t>(program_->touched(row))] == nullptr)
      bind(made.block, program_->touched(row));
  }
}

void ProgramCursor::move(const Program* program, size_t position, const PersistentAllocations& persistent,
                         bool taken_over, const std::vector<Operand>& given) {
  note_difference(program->name(program->matchable_ops()[position]));
  if (program != program_) exchange_for(program, position, persistent);
  if (!taken_over) ++jumps_;
  unbroken_ = taken_over;
  op_ = program->matchable_ops()[position];
  next_position_ = position + 1;
  first_due_ = program->first_action(op_, false);
  next_event_ = program->events(op_).first;
  skipped_ops_.note_seen(op_);
  const size_t first = program->arguments(op_).first;
  for (size_t row = 0; row < given.size() && !taken_over; ++row) {
    const int32_t storage = this->storage(*given[row].block);
    if (storage >= 0) skipped_ops_.note_substitute(program->touched(first + row), storage);
  }
  give(given);
  if (!taken_over) skipped_ops_.look_ahead(*program, op_, bound_);
}

void ProgramCursor::pass() {
  passed_ = true;
  unbroken_ = false;
  ++unknown_ops_;
}

void ProgramCursor::change_size(const Program* program, const PersistentAllocations& persistent) {
  exchange_for(program, next_position_, persistent);
  op_ = next_position_ > 0 ? program->matchable_ops()[next_position_ - 1] : -1;
  first_due_ = program->end_of_actions(op_, false);
  next_event_ = program->events(op_).second;
  exact_ = straight_ && made_bytes_ == program->made_bytes(op_ - 1);
}

void ProgramCursor::returned(const std::vector<Block*>& made) noexcept {
  if (!driving_ || passed_ || op_ < 0) return;
  const auto [first, end] = program_->results(op_);
  if (end - first != made.size()) return;
  for (size_t row = first; row < end; ++row) {
    const int32_t storage = program_->touched(row);
    if (!as_large(*made[row - first], program_->bytes(storage))) exact_ = false;
    bind(made[row - first], storage);
  }
}

// ---- allocations -----------------------------------------------------------------------------------------------

// Binds the block to the next storage of the same size that the program allocates in this op or after it. Allocations
// in between may be missing, because libraries take scratch memory or not. In a step with other sizes, returned() binds
// the results when the op ends.
void ProgramCursor::allocated(Block* block) noexcept {
  block->record.storage = -1;
  if (!driving_) return;
  made_bytes_ += op_ >= 0 ? static_cast<int64_t>(block->record.bytes) : 0;
  const size_t row = row_of(block->record.bytes);
  if (row == Program::kNoRow) return;
  bind(block, program_->event_storage(row));
  next_event_ = row + 1;
}

int32_t ProgramCursor::expected_key(uint64_t bytes) const {
  const size_t row = row_of(bytes);
  return row == Program::kNoRow ? -1 : program_->first_key + program_->event_storage(row);
}

size_t ProgramCursor::row_of(uint64_t bytes) const {
  if (!driving_ || passed_) return Program::kNoRow;
  const size_t end = program_->events(op_).second;
  for (size_t row = next_event_; row < end; ++row) {
    const int32_t storage = program_->event_storage(row);
    const bool made = program_->event_kind(row) == kAllocate && bound_[static_cast<size_t>(storage)] == nullptr;
    if (made && program_->bytes(storage) == static_cast<int64_t>(bytes)) return row;
  }
  return Program::kNoRow;
}

void ProgramCursor::freed(Block* block) noexcept {
  cross_program_.freed(block);
  if (!elsewhere_.empty()) elsewhere_.erase(block->record.serial);
  const int32_t storage = this->storage(*block);
  block->record.storage = -1;
  if (storage >= 0) bound_[static_cast<size_t>(storage)] = nullptr;
  if (shadowed_.empty()) return;
  shadowed_.remove(*block);
  Block* const below = storage >= 0 ? shadowed_.pop(storage) : nullptr;
  if (below != nullptr) bind(below, storage);
}

// ---- the plan and the trace --------------------------------------------------------------------------------------

Program::Rows ProgramCursor::due(bool after) const {
  if (!driving_ || op_ < 0 || passed_ || !program_->planned()) return {0, 0};
  if (after) return {program_->first_action(op_, true), program_->end_of_actions(op_, true)};
  return {first_due_, program_->end_of_actions(op_, false)};
}

int64_t ProgramCursor::next_use(const Block& block) const {
  if (!driving_) return Program::kNever;
  const int32_t own = storage(block), any = own >= 0 ? own : shadowed_.storage_of(block);
  return any >= 0 ? program_->next_use(any, op_, skipped_ops_.ops()) : Program::kNever;
}

bool ProgramCursor::wanted(int32_t storage, int32_t op) const {
  if (skipped_ops_.ops().empty()) return true;
  const int64_t ahead = program_->next_use(storage, op - 1);
  const int64_t next = op - 1 + ahead;
  return ahead == Program::kNever || next >= program_->op_count() || !skipped_ops_.has(static_cast<int32_t>(next));
}

// Ops that the trace did not time, or that are not in the program, count as 1 ns long.
double ProgramCursor::op_duration() const {
  const bool matched = driving_ && op_ >= 0 && !passed_;
  return static_cast<double>(std::max<int64_t>(matched ? program_->duration_ns(op_) : 0, 1));
}

void ProgramCursor::tell(um_swap_counters* out) const {
  out->program = program_ == nullptr ? UM_PROGRAM_NONE
                 : straight_         ? (driving_ ? UM_PROGRAM_DRIVING : UM_PROGRAM_WAITING)
                                     : UM_PROGRAM_DIVERGED;
  out->programs_followed = followed_;
  out->diverged_op = different_op_;
  out->diverged_expected = expected_;
  out->diverged_found = found_;
  out->program_number = program_ != nullptr ? program_->number : 0;
  out->step_ops = static_cast<uint32_t>(history_.size());
  out->unknown_ops = unknown_ops_;
  out->jumps = jumps_;
  out->made_bytes = made_bytes_;
  out->program_made_bytes = program_ != nullptr ? program_->made_bytes(op_) : 0;
}

}  // namespace um
