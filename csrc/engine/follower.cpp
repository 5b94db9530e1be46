#include "engine/follower.h"

#include <exception>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"

namespace um {

using driver::CUstream;

void Follower::set(const um_program* program) {
  std::unique_ptr<Program> next = program != nullptr ? std::make_unique<Program>(*program) : nullptr;
  if (program_ != nullptr) {
    programs_followed_ += program_->followed();
    program_->release();
  }
  postponed_.clear();
  program_ = std::move(next);
  program_ != nullptr ? device_.guard.join(*this) : device_.guard.leave(*this);
  device_.swapping.look_ahead(program_.get());
}

int32_t Follower::to_be(uint64_t bytes, const RunningOp* op) const {
  return program_ == nullptr || (op != nullptr && op->beside) ? -1 : program_->to_be(bytes);
}

void Follower::tell(um_swap_counters* out) const {
  out->actions = actions_;
  out->skipped_actions = skipped_actions_;
  out->redundant_actions = redundant_actions_;
  if (program_ != nullptr) program_->tell(out);
  out->programs_followed += programs_followed_;
}

template <class Each>
void Follower::act(bool after, const Each& each) {
  const auto [first, end] = program_->actions(after);
  if (first == end) return;
  const RequiredContext current(device_.backend);
  for (size_t row = first; row < end; ++row) each(row);
}

void Follower::end_step() {
  carry_out_postponed();
  act(true, [&](size_t row) { carry_out(program_->action(row)); });
  program_->end_step();
}

void Follower::begin_step(uint32_t step) {
  if (step != 0) program_->begin_step(*device_.allocations);
}

// Swaps after an op come when everything has that happened between it and the next one, such as frees; and not before
// an op that only creates: see Swapping::make.
void Follower::begin_op(RunningOp& op) {
  if (op.beside) return;
  if (!program_->driving()) return postponed_.clear();
  if (!op.untouched) carry_out_postponed();
  const auto swap = [&](size_t row) { op.untouched ? postponed_.push_back(row) : carry_out(program_->action(row)); };
  act(true, swap);
  program_->begin_op(op.identity.op, device_.guard.operands());
  act(false, [&](size_t row) {
    const Program::Action action = program_->action(row);
    action.block != nullptr&& managed(*action.block) ? move_managed(action, op.stream) : swap(row);
  });
  send_prefetches(op.stream);
}

void Follower::carry_out_postponed() {
  if (postponed_.empty()) return;
  const RequiredContext current(device_.backend);
  for (const size_t row : postponed_) carry_out(program_->action(row));
  postponed_.clear();
}

// Prefetches and advice after an op come before anything else does: memory that is about to be freed can be discarded.
void Follower::end_op(RunningOp& op) noexcept {
  if (op.beside) return;
  try {
    act(true, [&](size_t row) {
      const Program::Action action = program_->action(row);
      if (action.block != nullptr && managed(*action.block)) move_managed(action, op.stream);
    });
    send_prefetches(op.stream);
  } catch (const std::exception&) {  // it was a wish
    ++skipped_actions_;
  }
}

void Follower::allocated(Block* block, const RunningOp* op) noexcept {
  if (op == nullptr || !op->beside) program_->allocated(block);
}

// Of chunked memory.
void Follower::carry_out(const Program::Action& action) {
  if (action.block != nullptr && managed(*action.block)) return;
  if (action.block == nullptr || notes(*action.block).movable == nullptr) {
    action.block == nullptr ? ++skipped_actions_ : ++redundant_actions_;
    return;
  }
  try {
    ++(move(action) ? actions_ : redundant_actions_);
  } catch (const Error&) {  // no memory on the host, or the driver refuses: it was a wish
    ++skipped_actions_;
  }
}

// False: it is so already, or cannot be now.
bool Follower::move(const Program::Action& action) {
  Mover& mover = device_.swapping.mover();
  Movable* const block = notes(*action.block).movable;
  switch (action.kind) {
    case UM_PLAN_SWAP_IN:
      return mover.swap_in(block);
    case UM_PLAN_SWAP_OUT:
      return mover.swap_out(block);
    case UM_PLAN_DROP:  // where the host has it, that is free
      return action.argument != 0 ? mover.swap_out(block) : mover.set_spare(block);
    case UM_PLAN_PREFETCH:
      return action.argument == 0 ? mover.swap_in(block) : mover.swap_out(block);
    case UM_PLAN_WAIT:  // whoever needs it waits, in his stream
      return block->where != Where::host && block->where != Where::device;
    default:
      return false;
  }
}

void Follower::move_managed(const Program::Action& action, CUstream stream) {
  const Backend& backend = device_.backend;
  if (backend.why_no_migration() != nullptr) {
    ++skipped_actions_;
    return;
  }
  const uint64_t at = action.block->address + action.offset_bytes;
  const auto prefetch = [&](bool to_host) {
    if (to_host && notes(*action.block).exports > 0) return;
    const auto use = to_host ? Budget::Use::to_host : Budget::Use::to_device;
    device_.budget.keep([&](Budget& budget) { budget.use(at, action.bytes, use); }, stream);
    prefetches_.push_back({at, action.bytes, to_host});
    // Ordered counting looks at one thing after another, so prefetches come there where they are asked for.
    if (backend.ordered()) send_prefetches(stream);
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
      notes(*action.block).discarded = true;
      return;
    case UM_PLAN_ADVISE:
      return set_advice(backend, at, action.bytes, static_cast<um_advice>(action.argument));
    default:
      return;
  }
}

// What a plan asks for at one point goes out at once, beside the ops. The host is ahead of the device: pages that leave
// may be what kernels that have not begun yet are to use, and those that come are to find the room that others left.
void Follower::send_prefetches(CUstream stream) {
  if (prefetches_.empty()) return;
  const OnError forget([&] { prefetches_.clear(); });
  const Backend& backend = device_.backend;
  const RequiredContext current(backend);
  const CUstream beside = backend.ordered() ? nullptr : device_.streams.side();
  if (beside != nullptr) device_.streams.order(beside, stream, Wait::pages_after_op);
  backend.helper->ask([this, all = std::move(prefetches_), beside] {
    try {
      prefetch(device_.backend, all, beside);
    } catch (const std::exception&) {  // it was a wish
      ++skipped_actions_;
    }
  });
  prefetches_.clear();
  device_.accounts.sample_residency();
}

}  // namespace um
