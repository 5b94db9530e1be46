#include "engine/matching/prefetcher.h"

#include <algorithm>

namespace um {

namespace {

// The next ops, in time until they begin; and how much the link is given at once: what comes earlier takes room too
// soon, and what comes later is late where ops take longer or shorter than in the trace.
constexpr double kNextNs = 1e6, kBusyNs = 1e6;
constexpr double kAgainNs = kNextNs / 4;
constexpr int64_t kMostOps = 4096;

Movable* movable(Block* block) { return block != nullptr ? notes(*block).movable : nullptr; }
bool is_there(const Movable& block) { return block.where == Where::device || block.where == Where::arriving; }

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

// It begins when the ops before it have run, and the link has brought what they lack. A plan that is trusted brings
// that itself, and what it takes to be there and is not comes at once, however busy the link is.
bool Prefetcher::is_next(const Walk& walk) const {
  return (walk.trusts_plan ? walk.ahead_ns : std::max(walk.ahead_ns, walk.link_ns)) <= kNextNs;
}

Block* Prefetcher::block_of(const At& at, int32_t storage) const {
  if (at.this_step) return cursor_->block(storage);
  return at.program->persistent(storage) ? persistent_->find(at.program->first_serial(storage)) : nullptr;
}

// The plan brings it for that op, which is ahead and will come; the op before it too, after which it may do so.
bool Prefetcher::planned_after(const At& at, int32_t op) const {
  if (!at.this_step) return op > -1;
  return op > cursor_->op() && !cursor_->skipped(op) && !(op > 0 && cursor_->skipped(op - 1));
}

// False: there will be no room for it.
bool Prefetcher::visit(const At& at, Mover& mover, Walk* walk) {
  const Program& program = *at.program;
  count_plan(program.first_action(at.op, false), program.end_of_actions(at.op, false), at, mover, walk);
  const auto [first, end] = program.arguments(at.op);
  for (size_t row = first; row < end; ++row) {
    Movable* const each = movable(block_of(at, program.touched(row)));
    if (each == nullptr || planned_after(at, program.swapped_in_at(row))) continue;
    if (each->where != Where::host && each->where != Where::leaving) continue;
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
    const bool there = each == nullptr || is_there(*each) || each->where == Where::leaving;
    if (program.event_kind(row) == kFree && there) walk->free_bytes += taken;
  }
  count_plan(program.first_action(at.op, true), program.end_of_actions(at.op, true), at, mover, walk);
  return true;
}

// What the plan is going to do by then.
void Prefetcher::count_plan(size_t first, size_t end, const At& at, Mover& mover, Walk* walk) {
  if (!at.this_step || !is_next(*walk)) return;
  for (size_t row = first; row < end; ++row) {
    const Program::Action action = at.program->action(row);
    const Movable* const each = movable(block_of(at, action.storage));
    const auto bytes = static_cast<uint64_t>(static_cast<double>(at.program->bytes(action.storage)) * walk->scale);
    const int64_t taken = each != nullptr ? mover.room_of(*each) : mover.room_of(bytes);
    if (action.kind == UM_PLAN_SWAP_IN) {
      const bool comes = each != nullptr && each->where == Where::host && cursor_->wanted(action.storage, at.op);
      if (comes && planned_swap_ins_.insert(each).second) walk->free_bytes -= taken;
    } else if (action.kind == UM_PLAN_SWAP_OUT || action.kind == UM_PLAN_DROP) {
      const bool there = each == nullptr || is_there(*each) || each->where == Where::queued;
      if (there || planned_swap_ins_.erase(each) > 0) walk->free_bytes += taken;
    }
  }
  walk->least_free_bytes = std::min(walk->least_free_bytes, walk->free_bytes);
}

// Room for one of the next ops, if need be in the place of what is used after it. `room` is the walk's: `least` for
// what comes now, `room` for what the op makes.
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
