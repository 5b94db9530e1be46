// What a plan's actions do to the run.
#include <string>

#include "base/error.h"
#include "replay/swap_executor.h"

namespace um::simulator {

void SwapExecutor::wrong_plan(uint64_t row, const std::string& why) const {
  throw Error(UM_INVALID_ARGUMENT, "action " + std::to_string(row) + " of the plan, at op " +
                                       std::to_string(plan_->op[row]) + ", storage " +
                                       std::to_string(plan_->storage[row]) + ": " + why);
}

void SwapExecutor::check_plan() const {
  if (plan_ == nullptr) return;
  int64_t last = 0;
  for (uint64_t row = 0; row < plan_->count; ++row) {
    const int32_t op = plan_->op[row], storage = plan_->storage[row];
    const int64_t position = int64_t{op} * 2 + (plan_->after[row] != 0 ? 1 : 0);
    if (op < 0 || op >= trace_.op_count()) wrong_plan(row, "the trace has no such op");
    if (storage < 0 || storage >= trace_.storage_count()) wrong_plan(row, "the trace has no such storage");
    if (position < last) wrong_plan(row, "actions are not in the order of their anchors");
    if (plan_->kind[row] < UM_PLAN_SWAP_OUT || plan_->kind[row] > UM_PLAN_RECOMPUTE) {
      wrong_plan(row,
                 "advice, prefetches and discards are for unified memory: expected swaps, waits, drops, recomputes");
    }
    if (plan_->offset_bytes[row] != 0 || plan_->bytes[row] != trace_.bytes(storage)) {
      wrong_plan(row, "only whole storages are swapped: expected offset 0 and all its bytes");
    }
    if (plan_->kind[row] == UM_PLAN_RECOMPUTE && (plan_->argument[row] < 0 || plan_->argument[row] >= op)) {
      wrong_plan(row, "recomputation begins at op " + std::to_string(plan_->argument[row]) +
                          ": expected one before the anchor");
    }
    last = position;
  }
}

// Where the storages of before the first op are when the plan's steady state begins: a plan that first swaps one in
// has it on the host then.
void SwapExecutor::find_first_actions() {
  if (plan_ == nullptr) return;
  std::vector<uint8_t> seen(states_.size());
  for (uint64_t row = 0; row < plan_->count; ++row) {
    const auto storage = static_cast<size_t>(plan_->storage[row]);
    if (seen[storage]) continue;
    seen[storage] = 1;
    starts_on_host_[storage] = plan_->kind[row] == UM_PLAN_SWAP_IN;
  }
}

void SwapExecutor::run_actions(int32_t op, bool after) {
  if (plan_ == nullptr) return;
  while (next_action_ < plan_->count && plan_->op[next_action_] == op && (plan_->after[next_action_] != 0) == after) {
    act(next_action_++);
  }
}

void SwapExecutor::act(uint64_t row) {
  const int32_t storage = plan_->storage[row];
  const Place place = state(storage).place;
  if (place == Place::dead) wrong_plan(row, "the storage is not alive there");
  switch (plan_->kind[row]) {
    case UM_PLAN_SWAP_OUT:
      if (place == Place::dropped) wrong_plan(row, "the storage has been dropped: there is nothing to copy");
      return swap_out(storage);
    case UM_PLAN_SWAP_IN:
      if (place == Place::dropped) wrong_plan(row, "the storage has been dropped: recompute it");
      return swap_in(storage);
    case UM_PLAN_WAIT:
      return wait(storage);
    case UM_PLAN_DROP:
      if (plan_->argument[row] != 0 && place == Place::device && !state(storage).host_valid) {
        wrong_plan(row, "the host's copy is not valid: swap the storage out, or drop its contents");
      }
      return drop(storage);
    default:
      return recompute(row);
  }
}

void SwapExecutor::swap_in(int32_t storage) {
  const SwapState& each = state(storage);
  if (each.place == Place::host && each.written) {
    arrive(storage, false);
  } else if (each.place == Place::leaving) {
    stay(storage);
  } else {
    ++result_.redundant_actions;
  }
}

void SwapExecutor::swap_out(int32_t storage) {
  if (state(storage).place == Place::arriving) {
    if (!state(storage).copy_runs) return turn_back(storage);
    wait_for_arrival(storage);
  }
  if (state(storage).place != Place::device) {
    ++result_.redundant_actions;
    return;
  }
  leave(storage, UM_CAUSE_USER);
}

void SwapExecutor::wait(int32_t storage) {
  if (state(storage).place == Place::arriving) wait_for_arrival(storage);
  wait_for_departure(storage, UM_SPAN_WAIT_ROOM);
}

void SwapExecutor::drop(int32_t storage) {
  if (state(storage).place == Place::arriving) {
    if (!state(storage).copy_runs) return turn_back(storage);
    wait_for_arrival(storage);
  }
  SwapState& each = state(storage);
  if (each.place != Place::device) {
    ++result_.redundant_actions;
    return;
  }
  wait_for_departure(storage, UM_SPAN_WAIT_COPY);  // of a cancelled swap-out: it reads the memory
  release(storage);
  each.place = each.host_valid || !each.written ? Place::host : Place::dropped;
  ++result_.clean_drops;
}

}  // namespace um::simulator
