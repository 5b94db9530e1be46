#include "engine/foresight.h"

#include <algorithm>

namespace um {

namespace {

// What comes earlier takes the room of what is used before it; what comes later is late where ops take longer or shorter
// than in the trace. Of a V100's link, in tools/benchmark_changing.py.
constexpr double kEarlyNs = 1e6;
constexpr double kAgainNs = kEarlyNs / 4;
constexpr int64_t kMostOps = 512;

Movable* movable(Block* block) { return block != nullptr ? notes(*block).movable : nullptr; }

}  // namespace

bool Foresight::enough(const Walk& walk) const {
  return walk.ahead_ns > kEarlyNs + walk.copies_ns || walk.ops >= kMostOps;
}

void Foresight::look(const Pursuit& pursuit, const States& states, const Program* next, Mover& mover) {
  const Program& program = *pursuit.program();
  if (!pursuit.passed() && pursuit.op() >= 0) due_ns_ -= static_cast<double>(program.duration_ns(pursuit.op()));
  if (due_ns_ > 0) return;
  due_ns_ = kAgainNs;
  Walk walk;
  walk.copies_ns = program.ns_to_bring(mover.queued_bytes());
  walk.room = mover.room();
  const auto of_program = static_cast<double>(std::max<int64_t>(program.made_bytes(pursuit.op()), 1));
  walk.scale = std::clamp(static_cast<double>(pursuit.made_bytes()) / of_program, 0.1, 10.0);
  At at{&program, pursuit.op() + 1, true};
  for (; !enough(walk); ++at.op, ++walk.ops) {
    if (at.op == at.program->op_count()) {
      if (!at.this_step || next == nullptr) return;
      at = {next, 0, false};
      walk.scale = 1;
    }
    take(at, pursuit, states, mover, &walk);
    walk.ahead_ns += static_cast<double>(at.program->duration_ns(at.op));
  }
}

void Foresight::take(const At& at, const Pursuit& pursuit, const States& states, Mover& mover, Walk* walk) {
  const Program& program = *at.program;
  const auto block_of = [&](int32_t storage) -> Block* {
    if (at.this_step) return pursuit.block(storage);
    return program.state(storage) ? states.find(program.first_serial(storage)) : nullptr;
  };
  take_plan(program.first_action(at.op, false), program.end_of_actions(at.op, false), at, pursuit, mover, walk);
  const int32_t now = at.this_step ? pursuit.op() : -1;
  const auto [first, end] = program.arguments(at.op);
  for (size_t row = first; row < end; ++row) {
    Movable* const each = movable(block_of(program.touched(row)));
    if (each == nullptr || program.brought_at(row) > now) continue;
    if (each->where != Where::host && each->where != Where::leaving) continue;
    if (!mover.swap_in(each)) continue;
    walk->room -= static_cast<int64_t>(mover.chunks_of(*each));
    walk->copies_ns += program.ns_to_bring(each->block->record.bytes);
  }
  const auto [from, to] = program.events(at.op);
  for (size_t row = from; row < to; ++row) {
    const int32_t storage = program.event_storage(row);
    const auto bytes = static_cast<uint64_t>(static_cast<double>(program.bytes(storage)) * walk->scale);
    if (program.event_kind(row) == kAllocate) walk->room -= static_cast<int64_t>(mover.chunks_to_make(bytes));
    if (program.event_kind(row) == kFree) {
      const Movable* const each = movable(block_of(storage));
      const bool there = each == nullptr || (each->where != Where::host && each->where != Where::queued);
      if (there) walk->room += static_cast<int64_t>(mover.chunks_to_make(bytes));
    }
    if (walk->room < 0) make_room(mover, walk);
  }
  if (walk->room < 0) make_room(mover, walk);
  take_plan(program.first_action(at.op, true), program.end_of_actions(at.op, true), at, pursuit, mover, walk);
}

// What the plan is going to do by then.
void Foresight::take_plan(size_t first, size_t end, const At& at, const Pursuit& pursuit, Mover& mover, Walk* walk) {
  if (!at.this_step) return;
  for (size_t row = first; row < end; ++row) {
    const Program::Action action = at.program->action(row);
    const Movable* const each = movable(pursuit.block(action.storage));
    const auto bytes = static_cast<uint64_t>(static_cast<double>(at.program->bytes(action.storage)) * walk->scale);
    const auto chunks = static_cast<int64_t>(each != nullptr ? mover.chunks_of(*each) : mover.chunks_to_make(bytes));
    const bool out = each != nullptr && each->where == Where::host, leaves = each != nullptr && each->where == Where::leaving;
    if (action.kind == UM_PLAN_SWAP_IN && out) walk->room -= chunks;
    if ((action.kind == UM_PLAN_SWAP_OUT || action.kind == UM_PLAN_DROP) && !out && !leaves) walk->room += chunks;
  }
}

// By what is used after that.
void Foresight::make_room(Mover& mover, Walk* walk) {
  while (walk->room < 0) {
    const uint64_t chunks = mover.send_away(walk->ops + 1);
    if (chunks == 0) break;
    walk->room += static_cast<int64_t>(chunks);
  }
  walk->room = std::max<int64_t>(walk->room, 0);  // what cannot be had now is asked for once
}

}  // namespace um
