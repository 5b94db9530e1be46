#include "replay/swap_plan.h"

namespace um::simulator {

SwapPlan::SwapPlan(const um_plan* plan, const IndexedTrace& trace, SwapStorages& storages, um_swap_result& result)
    : plan_(plan != nullptr ? *plan : um_plan{}),
      storages_(storages),
      result_(result),
      recompute_(trace, storages, result),
      starts_on_host_(static_cast<size_t>(trace.storage_count())) {
  check(trace);
  find_first_actions();
}

void SwapPlan::check(const IndexedTrace& trace) const {
  int64_t last = 0;
  for (uint64_t row = 0; row < plan_.count; ++row) {
    const PlanAction action(plan_, row);
    const int64_t position = int64_t{action.op} * 2 + (action.after ? 1 : 0);
    if (action.op < 0 || action.op >= trace.op_count()) action.wrong("the trace has no such op");
    if (action.storage < 0 || action.storage >= trace.storage_count()) action.wrong("the trace has no such storage");
    if (position < last) action.wrong("actions are not in the order of their anchors");
    if (action.kind < UM_PLAN_SWAP_OUT || action.kind > UM_PLAN_RECOMPUTE) {
      action.wrong("advice, prefetches and discards are for unified memory: expected swaps, waits, drops, recomputes");
    }
    if (action.offset_bytes != 0 || action.bytes != trace.bytes(action.storage)) {
      action.wrong("only whole storages are swapped: expected offset 0 and all its bytes");
    }
    if (action.kind == UM_PLAN_RECOMPUTE && (action.argument < 0 || action.argument >= action.op)) {
      action.wrong("recomputation begins at op " + std::to_string(action.argument) +
                   ": expected one before the anchor");
    }
    last = position;
  }
}

void SwapPlan::find_first_actions() {
  std::vector<uint8_t> seen(starts_on_host_.size());
  for (uint64_t row = 0; row < plan_.count; ++row) {
    const auto storage = static_cast<size_t>(plan_.storage[row]);
    if (seen[storage]) continue;
    seen[storage] = 1;
    starts_on_host_[storage] = plan_.kind[row] == UM_PLAN_SWAP_IN;
  }
}

void SwapPlan::run(int32_t op, bool after) {
  while (next_ < plan_.count && plan_.op[next_] == op && (plan_.after[next_] != 0) == after) {
    act(PlanAction(plan_, next_++));
  }
}

void SwapPlan::act(const PlanAction& action) {
  const SwapState& now = storages_.state(action.storage);
  if (now.place == Place::dead) action.wrong("the storage is not alive there");
  switch (action.kind) {
    case UM_PLAN_SWAP_OUT:
      if (now.place == Place::dropped) action.wrong("the storage has been dropped: there is nothing to copy");
      return swap_out(action.storage);
    case UM_PLAN_SWAP_IN:
      if (now.place == Place::dropped) action.wrong("the storage has been dropped: recompute it");
      return swap_in(action.storage);
    case UM_PLAN_WAIT:
      return wait(action.storage);
    case UM_PLAN_DROP:
      if (action.argument != 0 && now.place == Place::device && !now.host_valid) {
        action.wrong("the host's copy is not valid: swap the storage out, or drop its contents");
      }
      return drop(action.storage);
    default:
      return recompute_.run(action);
  }
}

void SwapPlan::swap_in(int32_t storage) {
  const SwapState& each = storages_.state(storage);
  if (each.place == Place::host && each.written) {
    storages_.arrive(storage, false);
  } else if (each.place == Place::leaving) {
    storages_.cancel_swap_out(storage);
  } else {
    ++result_.redundant_actions;
  }
}

void SwapPlan::swap_out(int32_t storage) {
  if (still_on_device(storage)) storages_.leave(storage, UM_CAUSE_USER);
}

void SwapPlan::wait(int32_t storage) {
  storages_.wait_for_arrival(storage);
  storages_.wait_for_departure(storage, UM_SPAN_WAIT_ROOM);
}

void SwapPlan::drop(int32_t storage) {
  if (!still_on_device(storage)) return;
  storages_.wait_for_departure(storage, UM_SPAN_WAIT_COPY);  // of a cancelled swap-out: it reads the memory
  storages_.release(storage);
  SwapState& each = storages_.state(storage);
  each.place = each.host_valid || !each.written ? Place::host : Place::dropped;
  ++result_.clean_drops;
}

// What is to leave: a swap-in that has not started turns back, one that runs ends first.
bool SwapPlan::still_on_device(int32_t storage) {
  const SwapState& each = storages_.state(storage);
  if (each.place == Place::arriving && !each.copy_runs) {
    storages_.turn_back(storage);
    return false;
  }
  storages_.wait_for_arrival(storage);
  if (each.place != Place::device) ++result_.redundant_actions;
  return each.place == Place::device;
}

}  // namespace um::simulator
