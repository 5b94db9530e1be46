#include "engine/matching/plan_executor.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/device_base.h"

namespace um {

using driver::CUstream;

namespace {

class Pinned {
 public:
  explicit Pinned(const Mover::Uses& uses) : uses_(uses) {
    for (const Movable::Use& use : uses_) ++use.block->pins;
  }
  ~Pinned() {
    for (const Movable::Use& use : uses_) --use.block->pins;
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  const Mover::Uses& uses_;
};

}  // namespace

// ---- programs --------------------------------------------------------------------------------------------------

uint32_t PlanExecutor::add(const um_program& program) {
  const bool first = programs_.empty();
  unbegun_.reserve(unbegun_.size() + 1);
  const std::unique_ptr<const Program> old = program.replaces != 0 ? programs_.replace(program) : nullptr;
  const Program& added = old != nullptr ? *programs_.find(old->number) : programs_.add(program);
  base_.allocations->each_block([&](Block& block) {
    // A serial number is never used again, so it identifies a persistent allocation.
    if (added.has_persistent(block.record.serial)) persistent_.add(&block);
  });
  old != nullptr ? take_place(*old, added) : unbegun_.push_back(&added);
  if (program.is_last != 0) {
    programs_.note_step(before_last_, added);
    last_ = &added;
    last_was_exact_ = false;  // the plan may begin in another state than that step ended in
  }
  if (first) base_.participants.join(*this);
  swapping_.look_ahead(&cursor_);
  return added.number;
}

// Keeps the bindings of the last step if it followed the old program and both programs have the same storages.
void PlanExecutor::take_place(const Program& old, const Program& added) {
  const auto unbegun = std::find(unbegun_.begin(), unbegun_.end(), &old);
  const bool goes_on = unbegun == unbegun_.end() && !cursor_.driving() && added.same_storages(old);
  if (cursor_.program() == &old) goes_on ? cursor_.exchange(&added) : cursor_.leave();
  if (last_ == &old) last_was_exact_ = false;  // the new plan begins in another way than the old one ended
  for (const Program** each : {&last_, &before_last_, &next_}) *each = *each == &old ? &added : *each;
  if (unbegun != unbegun_.end()) unbegun_.erase(unbegun);
  if (!goes_on) unbegun_.push_back(&added);
  postponed_.clear();
}

void PlanExecutor::expect(uint32_t number) {
  const Program* const next = programs_.find(number);
  if (next == nullptr) throw Error(UM_INVALID_ARGUMENT, "there is no program of that number");
  programs_.expect(last_, *next);
}

void PlanExecutor::drop(uint32_t number) {
  const Program* const gone = programs_.find(number);
  if (gone == nullptr) return;
  if (cursor_.program() == gone) cursor_.leave();
  for (const Program** each : {&last_, &before_last_, &next_}) *each = *each == gone ? nullptr : *each;
  unbegun_.erase(std::remove(unbegun_.begin(), unbegun_.end(), gone), unbegun_.end());
  postponed_.clear();
  programs_.drop(number);
  if (programs_.empty()) drop_all();
}

void PlanExecutor::drop_all() {
  close();
  base_.participants.leave(*this);
  swapping_.look_ahead(nullptr);
}

void PlanExecutor::close() noexcept {
  cursor_.leave();
  last_ = before_last_ = next_ = nullptr;
  unbegun_.clear();
  postponed_.clear();
  programs_.clear();
  persistent_.clear();
}

void PlanExecutor::tell(um_swap_counters* out) const {
  out->actions = actions_;
  out->skipped_actions = skipped_actions_;
  out->redundant_actions = redundant_actions_;
  cursor_.tell(out);
  if (out->program == UM_PROGRAM_NONE && !programs_.empty()) out->program = UM_PROGRAM_WAITING;
}

// ---- steps -----------------------------------------------------------------------------------------------------

void PlanExecutor::begin_step(uint32_t step) {
  if (step == 0) return;
  const Program* const program = programs_.expected(last_);
  const auto found = std::find(unbegun_.begin(), unbegun_.end(), program);
  const bool fresh = found != unbegun_.end();
  if (fresh) unbegun_.erase(found);
  const int64_t evictions = swapping_.has_chunks() ? swapping_.mover().evictions() : 0;
  scans_ = !program->planned() || program != last_ || !last_was_exact_ || evictions != evictions_;
  evictions_ = evictions;
  cursor_.begin_step(program, persistent_, *base_.allocations, fresh);
  next_ = programs_.expected(program);
  prefetcher_.rescan_now();
  begins_ = true;
}

// Marks the persistent allocations that the plan swaps in later as the first to evict. This waits until the step's
// first ops have shown which program has its size.
void PlanExecutor::begin_as_planned() {
  begins_ = false;
  if (!scans_ && cursor_.program() == last_) return;
  const Program& program = *cursor_.program();
  const RequiredContext current(base_.backend);
  for (const int32_t storage : program.persistent_storages()) {
    Block* const block = program.starts_resident(storage) ? nullptr : cursor_.block(storage);
    if (block != nullptr && notes(*block).movable != nullptr)
      static_cast<void>(swapping_.mover().evict_first(notes(*block).movable));
  }
}

void PlanExecutor::end_step() {
  if (!cursor_.driving()) return;
  carry_out_postponed();
  act(true, [&](size_t row) {
    device_lock.assert_held();
    carry_out(cursor_.program()->action(row));
  });
  cursor_.end_step();
  last_was_exact_ = cursor_.exact();
  programs_.note_step(last_, *cursor_.program());
  before_last_ = last_;
  last_ = cursor_.program();
}

// ---- ops -------------------------------------------------------------------------------------------------------

template <class Each>
void PlanExecutor::act(bool after, const Each& each) {
  const auto [first, end] = cursor_.due(after);
  if (first == end) return;
  const RequiredContext current(base_.backend);
  for (size_t row = first; row < end; ++row) each(row);
}

// Actions after the last op are carried out now, when everything between both ops has happened, such as frees. They are
// postponed while ops only create memory: see Swapping::make.
void PlanExecutor::begin_op(RunningOp& op) {
  if (op.beside || !cursor_.driving()) return;
  if (!op.untouched) carry_out_postponed();
  const auto swap = [&](size_t row) {
    device_lock.assert_held();
    op.untouched ? postponed_.push_back(row) : carry_out(cursor_.program()->action(row));
  };
  act(true, swap);
  if (swapping_.has_chunks()) swapping_.mover().begin_op();
  follow(op);
  act(false, [&](size_t row) {
    device_lock.assert_held();
    const Program::Action action = cursor_.program()->action(row);
    Block* const block = cursor_.block(action.storage);
    block != nullptr&& managed(*block) ? move_managed(action, block, op) : swap(row);
  });
  send_prefetches(op.stream);
  if (begins_ && cursor_.next_position() > 1) begin_as_planned();
  if (!op.untouched) look_ahead(op);
}

void PlanExecutor::follow(const RunningOp& op) {
  const std::vector<Operand>& given = base_.ops.operands;
  const Program* const before = cursor_.program();
  const int32_t op_before = cursor_.op();
  const ProgramCursor::Match match = cursor_.begin_op(op.identity.op, given);
  if (match == ProgramCursor::Match::other) {
    const Programs::Place place = programs_.seek(cursor_);
    if (place.program == nullptr) return cursor_.pass();
    cursor_.move(place.program, place.position, persistent_, place.taken_over, given);
  } else if (const Program* const nearer = given.empty() ? nullptr : programs_.nearer_in_size(cursor_)) {
    cursor_.change_size(nearer, persistent_);
  } else {
    return;
  }
  next_ = programs_.expected(cursor_.program());
  postponed_.clear();
  const bool same = cursor_.program() == before;
  if (same) catch_up(op_before);
  if (!same || cursor_.op() <= op_before) prefetcher_.rescan_now();
}

// Carries out the swap-outs of ops that did not run or, if the step has gone back, of all ops until now. A swap-out
// counts only if it is the last action on its storage there.
void PlanExecutor::catch_up(int32_t op_before) {
  const Program& program = *cursor_.program();
  if (!program.planned()) return;
  const size_t first = op_before < cursor_.op() ? program.first_action(op_before + 1, false) : 0;
  caught_up_.assign(static_cast<size_t>(program.storage_count()), false);
  missed_.clear();
  for (size_t row = program.first_action(cursor_.op(), false); row > first; --row) {
    const Program::Action action = program.action(row - 1);
    if (caught_up_[static_cast<size_t>(action.storage)]) continue;
    caught_up_[static_cast<size_t>(action.storage)] = true;
    const bool leaves = action.kind == UM_PLAN_SWAP_OUT || action.kind == UM_PLAN_DROP;
    if (leaves && cursor_.block(action.storage) != nullptr) missed_.push_back(row - 1);
  }
  const RequiredContext current(base_.backend);
  for (auto row = missed_.rbegin(); row != missed_.rend(); ++row) carry_out(program.action(*row));
}

// The op's operands are not pinned yet, and must not be evicted for the operands of later ops.
void PlanExecutor::look_ahead(const RunningOp& op) {
  if (!swapping_.has_chunks() || !cursor_.program()->knows_link()) return;
  Mover& mover = swapping_.mover();
  const bool as_planned = cursor_.exact() && next_ == cursor_.program() && mover.evictions() == evictions_;
  if (!scans_ && as_planned) return;
  const RequiredContext current(base_.backend);
  const Pinned own(op.swapped);
  prefetcher_.scan(cursor_, persistent_, next_, mover);
}

// Prefetches and advice after an op are carried out at once, so that memory which is freed next can be discarded
// before.
void PlanExecutor::end_op(RunningOp& op) noexcept {
  if (op.beside || !cursor_.driving()) return;
  try {
    made_.clear();
    for (uint32_t i = 0; i < op.output_count; ++i) {
      Block* const block = base_.own_block(op.outputs[i].address);
      const bool made = block != nullptr && block->record.birth_step == op.identity.step &&
                        block->record.birth_op_index == op.identity.index;
      if (made && std::find(made_.begin(), made_.end(), block) == made_.end()) made_.push_back(block);
    }
    cursor_.returned(made_);
    act(true, [&](size_t row) {
      device_lock.assert_held();
      const Program::Action action = cursor_.program()->action(row);
      Block* const block = cursor_.block(action.storage);
      if (block != nullptr && managed(*block)) move_managed(action, block, op);
    });
    send_prefetches(op.stream);
  } catch (const std::exception&) {  // an action is only a request
    ++skipped_actions_;
  }
}

void PlanExecutor::carry_out_postponed() {
  if (postponed_.empty()) return;
  const RequiredContext current(base_.backend);
  for (const size_t row : postponed_) carry_out(cursor_.program()->action(row));
  postponed_.clear();
}

void PlanExecutor::allocated(Block* block, const RunningOp* op) noexcept {
  if (op == nullptr || !op->beside) cursor_.allocated(block);
}

void PlanExecutor::freed(Block* block) noexcept {
  persistent_.freed(block);
  cursor_.freed(block);
}

// ---- actions ---------------------------------------------------------------------------------------------------

// Carries out an action on chunked memory. Actions on managed memory are left to move_managed().
void PlanExecutor::carry_out(const Program::Action& action) {
  Block* const block = cursor_.block(action.storage);
  if (block != nullptr && managed(*block)) return;
  if (block == nullptr || notes(*block).movable == nullptr) {
    block == nullptr ? ++skipped_actions_ : ++redundant_actions_;
    return;
  }
  try {
    ++(move(action, notes(*block).movable) ? actions_ : redundant_actions_);
  } catch (const Error&) {  // host memory is short, or the driver refuses: an action is only a request
    ++skipped_actions_;
  }
}

// Returns false if the action has no effect, or is impossible now.
bool PlanExecutor::move(const Program::Action& action, Movable* block) {
  Mover& mover = swapping_.mover();
  if (swaps_in(action.kind, action.argument) && !cursor_.wanted(action.storage, cursor_.op())) return false;
  switch (action.kind) {
    case UM_PLAN_SWAP_IN:
      return mover.swap_in(block);
    case UM_PLAN_SWAP_OUT:
      return mover.swap_out(block);
    case UM_PLAN_DROP:  // it costs nothing if the host copy is valid
      return action.argument != 0 ? mover.swap_out(block) : mover.evict_first(block);
    case UM_PLAN_PREFETCH:
      return action.argument == 0 ? mover.swap_in(block) : mover.swap_out(block);
    case UM_PLAN_WAIT:  // the op that needs the storage waits, in its stream
      return !block->state.is(Where::host) && !block->state.is(Where::device);
    default:
      return false;
  }
}

// Carries out an action on managed memory. In a step with other sizes, its range is cut to the allocation's, and an
// action that reaches the end of the recorded storage reaches the end of the allocation.
void PlanExecutor::move_managed(const Program::Action& action, Block* block, const RunningOp& op) {
  const Backend& backend = base_.backend;
  if (backend.why_no_migration() != nullptr) {
    ++skipped_actions_;
    return;
  }
  const auto planned_bytes = static_cast<uint64_t>(cursor_.program()->bytes(action.storage));
  const bool ends = action.offset_bytes + action.bytes == planned_bytes;
  const uint64_t offset_bytes = std::min(action.offset_bytes, block->record.bytes);
  const uint64_t left_bytes = block->record.bytes - offset_bytes;
  const uint64_t bytes = ends ? left_bytes : std::min(action.bytes, left_bytes), at = block->address + offset_bytes;
  const auto prefetch = [&](bool to_host) {
    device_lock.assert_held();
    if (to_host && notes(*block).exports > 0) return;
    const auto use = to_host ? Budget::Use::to_host : Budget::Use::to_device;
    budget_.use(at, bytes, use, op.stream, op.identity);
    prefetches_.push_back({at, bytes, to_host});
    // Ordered counting is deterministic: each prefetch is sent where the plan has it.
    if (backend.ordered()) send_prefetches(op.stream);
  };
  ++actions_;
  switch (action.kind) {
    case UM_PLAN_PREFETCH:
      return prefetch(action.argument != 0);
    case UM_PLAN_SWAP_IN:
      return prefetch(false);
    case UM_PLAN_SWAP_OUT:
    case UM_PLAN_DROP:
      return prefetch(true);
    case UM_PLAN_DISCARD:
      notes(*block).discarded = true;
      return;
    case UM_PLAN_ADVISE:
      return set_advice(backend, at, bytes, static_cast<um_advice>(action.argument));
    default:
      return;
  }
}

// Sends the prefetches of one op together, in a stream of their own. This stream first waits for the op's stream: the
// host runs ahead of the device, so kernels that have not begun yet may still use pages that the plan evicts. The
// stream also keeps the order of prefetches, so that pages which arrive find the memory that others have freed.
void PlanExecutor::send_prefetches(CUstream stream) {
  if (prefetches_.empty()) return;
  const OnError forget([&] { prefetches_.clear(); });
  const Backend& backend = base_.backend;
  const RequiredContext current(backend);
  const CUstream beside = backend.ordered() ? nullptr : streams_.side();
  if (beside != nullptr) streams_.order(beside, stream, Wait::pages_after_op);
  backend.helper->ask([this, all = std::move(prefetches_), beside] {
    try {
      prefetch(base_.backend, all, beside);
    } catch (const std::exception&) {  // a prefetch is only a request
      ++skipped_actions_;
    }
  });
  prefetches_.clear();
  accounts_.sample_residency();
}

}  // namespace um
