#include "engine/matching/prefetcher.h"

#include <algorithm>

namespace um {

namespace {

// The time within which next ops begin, and the link time that is queued at most. With a longer time, swap-ins occupy
// device memory too early. With a shorter one they are late if ops take longer or shorter than recorded.
constexpr double kNextNs = 1e6, kBusyNs = 1e6;
constexpr double kAgainNs = kNextNs / 4;
constexpr int64_t kMostOps = 4096;

Movable* movable(Block* block) { return block != nullptr ? notes(*block).movable : nullptr; }

}  // namespace

void Prefetcher::scan(const ProgramCursor& cursor, const PersistentAllocations& persistent, const Program* next,
                      Mover& mover) {
  const Program& program = *cursor.program();
  if (!cursor.passed() && cursor.op() >= 0) due_ns_ -= static_cast<double>(program.duration_ns(cursor.op()));
  if (due_ns_ > 0) return;
  due_ns_ = kAgainNs;
  cursor_ = &cursor;
  persistent_ = &persistent;
  rest_.clear();
  planned_swap_ins_.clear();
  Walk walk;
  walk.link_ns = program.swap_in_ns(mover.queued_bytes());
  walk.free_bytes = walk.least_free_bytes = mover.room_bytes();
  walk.trusts_plan = program.planned() && cursor.exact();
  const auto of_program = static_cast<double>(std::max<int64_t>(cursor.planned_bytes(), 1));
  walk.scale = std::clamp(static_cast<double>(cursor.made_bytes()) / of_program, 0.1, 10.0);
  At at{&program, cursor.op() + 1, true};
  for (; walk.ops < kMostOps && walk.ahead_ns <= kNextNs + walk.link_ns; ++at.op, ++walk.ops) {
    if (at.op == at.program->op_count()) {
      if (!at.this_step || next == nullptr) break;
      at = {next, 0, false};
      walk.scale = 1;
    }
    if (at.this_step && cursor.skipped(at.op)) continue;
    if (!visit(at, mover, &walk)) return;
    walk.ahead_ns += static_cast<double>(at.program->duration_ns(at.op));
  }
  prefetch_rest(mover, &walk);
}

// An op begins when the ops before it have run and the link has brought their operands. A trusted plan swaps those in
// itself, so the link does not count. Operands that it wrongly assumes to be resident are then swapped in at once,
// however busy the link is.
bool Prefetcher::is_next(const Walk& walk) const {
  return (walk.trusts_plan ? walk.ahead_ns : std::max(walk.ahead_ns, walk.link_ns)) <= kNextNs;
}

Block* Prefetcher::block_of(const At& at, int32_t storage) const {
  if (at.this_step) return cursor_->block(storage);
  return at.program->persistent(storage) ? persistent_->find(at.program->first_serial(storage)) : nullptr;
}

// Returns whether the plan will still swap an operand in for `op`: that op is ahead, and neither it is skipped nor the
// op before it, after which the swap-in may be anchored.
bool Prefetcher::planned_after(const At& at, int32_t op) const {
  if (!at.this_step) return op > -1;
  return op > cursor_->op() && !cursor_->skipped(op) && !(op > 0 && cursor_->skipped(op - 1));
}

// Swaps in the op's operands if it is a next op, or else notes them, and counts the memory that it allocates and frees.
// Returns false if device memory does not suffice.
bool Prefetcher::visit(const At& at, Mover& mover, Walk* walk) {
  const Program& program = *at.program;
  count_plan(program.first_action(at.op, false), program.end_of_actions(at.op, false), at, mover, walk);
  const auto [first, end] = program.arguments(at.op);
  for (size_t row = first; row < end; ++row) {
    Movable* const each = movable(block_of(at, program.touched(row)));
    if (each == nullptr || planned_after(at, program.swapped_in_at(row))) continue;
    if (!each->state.is(Where::host) && !each->state.is(Where::leaving)) continue;
    if (is_next(*walk)) {
      const int64_t taken = mover.room_of(*each);
      if (!make_room(taken, walk->least_free_bytes, mover, walk)) return false;
      if (mover.swap_in(each)) walk->free_bytes -= taken, walk->least_free_bytes -= taken;
    } else {
      rest_.push_back(each);
    }
    walk->link_ns += program.swap_in_ns(each->block->record.bytes);
  }
  const auto [from, to] = program.events(at.op);
  for (size_t row = from; row < to && is_next(*walk); ++row) {
    const int32_t storage = program.event_storage(row);
    const auto bytes = static_cast<uint64_t>(static_cast<double>(program.bytes(storage)) * walk->scale);
    const int64_t taken = mover.room_of(bytes);
    if (program.event_kind(row) == kAllocate) {
      if (!make_room(taken, walk->free_bytes, mover, walk)) return false;
      walk->free_bytes -= taken;
      walk->least_free_bytes = std::min(walk->least_free_bytes, walk->free_bytes);
    }
    const Movable* const each = movable(block_of(at, storage));
    const bool there = each == nullptr || each->state.resident() || each->state.is(Where::leaving);
    if (program.event_kind(row) == kFree && there) walk->free_bytes += taken;
  }
  count_plan(program.first_action(at.op, true), program.end_of_actions(at.op, true), at, mover, walk);
  return true;
}

// Counts the memory that the plan's actions at this op will take and free.
void Prefetcher::count_plan(size_t first, size_t end, const At& at, Mover& mover, Walk* walk) {
  if (!at.this_step || !is_next(*walk)) return;
  for (size_t row = first; row < end; ++row) {
    const Program::Action action = at.program->action(row);
    const Movable* const each = movable(block_of(at, action.storage));
    const auto bytes = static_cast<uint64_t>(static_cast<double>(at.program->bytes(action.storage)) * walk->scale);
    const int64_t taken = each != nullptr ? mover.room_of(*each) : mover.room_of(bytes);
    if (action.kind == UM_PLAN_SWAP_IN) {
      const bool comes = each != nullptr && each->state.is(Where::host) && cursor_->wanted(action.storage, at.op);
      if (comes && planned_swap_ins_.insert(each).second) walk->free_bytes -= taken;
    } else if (action.kind == UM_PLAN_SWAP_OUT || action.kind == UM_PLAN_DROP) {
      const bool there = each == nullptr || each->state.resident() || each->state.is(Where::queued);
      if (there || planned_swap_ins_.erase(each) > 0) walk->free_bytes += taken;
    }
  }
  walk->least_free_bytes = std::min(walk->least_free_bytes, walk->free_bytes);
}

// Evicts allocations that are used after the op at hand until `bytes` are free. `free_bytes` is a member of the walk:
// least_free_bytes for an operand, which is swapped in now, and free_bytes for what the op allocates. Returns false if
// there is nothing more to evict.
bool Prefetcher::make_room(int64_t bytes, const int64_t& free_bytes, Mover& mover, Walk* walk) {
  while (free_bytes < bytes && !walk->trusts_plan) {
    const int64_t sent = mover.send_away(walk->ops);
    if (sent == 0) return false;
    walk->free_bytes += sent;
    walk->least_free_bytes += sent;
  }
  return true;
}

void Prefetcher::prefetch_rest(Mover& mover, Walk* walk) {
  if (walk->trusts_plan) return;
  double busy_ns = cursor_->program()->swap_in_ns(mover.queued_bytes());
  for (Movable* const each : rest_) {
    due_ns_ = 0;
    if (busy_ns > kBusyNs) return;
    const int64_t taken = mover.room_of(*each);
    if (!make_room(taken, walk->least_free_bytes, mover, walk)) return;
    if (!mover.swap_in(each)) continue;
    walk->least_free_bytes -= taken;
    busy_ns += cursor_->program()->swap_in_ns(each->block->record.bytes);
  }
}

}  // namespace um
