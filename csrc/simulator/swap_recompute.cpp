// Ops that run again to make a storage whose contents were dropped.
#include <algorithm>
#include <limits>
#include <string>

#include "memory/error.h"
#include "simulator/swap_executor.h"

namespace um::simulator {

// From the plan's first op to the last one that wrote the storage. What they need besides and is gone by now is made
// again for as long as they need it; only the storage itself stays.
void SwapExecutor::recompute(uint64_t row) {
  const um_trace& columns = trace_.columns();
  const int32_t target = plan_->storage[row];
  const Place place = state(target).place;
  if (place != Place::dropped && place != Place::host) {
    if (place == Place::leaving) stay(target);
    ++result_.redundant_actions;
    return;
  }
  const auto first = static_cast<int32_t>(plan_->argument[row]);
  const int32_t last = state(target).last_writer;
  if (last < first) wrong_plan(row, "no op from " + std::to_string(first) + " on has written the storage in this step");
  for (uint64_t access = trace_.first_access(first); access < trace_.first_access(last + 1); ++access) {
    last_touch_[static_cast<size_t>(columns.access_storage[access])] = columns.access_op[access];
  }
  const int32_t anchor = op_;
  for (op_ = first; op_ <= last; ++op_) rerun(row, target, last);
  op_ = anchor;
  state(target).place = Place::device;
  state(target).host_valid = false;
  victims_.returned(target);
}

void SwapExecutor::rerun(uint64_t row, int32_t target, int32_t last_op) {
  const um_trace& columns = trace_.columns();
  wait_for_host();
  ++pin_;
  for (const int32_t storage : borrowed_) state(storage).pin = pin_;
  state(target).pin = pin_;
  for (uint64_t access = trace_.first_access(op_); access < trace_.first_access(op_ + 1); ++access) {
    use_again(row, access, target, last_op);
  }
  for (uint64_t event = trace_.first_event(op_); event < trace_.first_event(op_ + 1); ++event) {
    const int32_t storage = columns.event_storage[event];
    if (columns.event_kind[event] != kAllocate || columns.event_inside[event] == 0) continue;
    if (storage == target || state(storage).place != Place::dead || is_borrowed(storage)) continue;
    last_touch_[static_cast<size_t>(storage)] = op_;  // scratch: no op touches it by name
    borrow(storage);
  }
  for (const int32_t storage : arrivals_) wait_for_arrival(storage);
  arrivals_.clear();
  pay_for_mappings();
  const int64_t duration_ns = std::max<int64_t>(columns.op_duration_ns[op_], 0);
  result_.recompute_ns += duration_ns;
  ++result_.recomputed_ops;
  execute(duration_ns, UM_SPAN_RECOMPUTE);
  give_back_borrowed();
}

// One access of an op that runs again.
void SwapExecutor::use_again(uint64_t row, uint64_t access, int32_t target, int32_t last_op) {
  const um_trace& columns = trace_.columns();
  const int32_t storage = columns.access_storage[access];
  if (is_borrowed(storage)) return;
  const uint8_t flags = columns.access_flags[access];
  const bool reads = (flags & kRead) != 0 && !trace_.writes_all(access);
  SwapState& each = state(storage);
  const bool lost = storage == target || each.place == Place::dead || each.place == Place::dropped;
  if (storage == target && each.block != Allocator::kNoRoom) return;
  if (reads && (lost || each.last_writer > last_op)) {
    wrong_plan(row, "op " + std::to_string(columns.access_op[access]) + " cannot run again: storage " +
                        std::to_string(storage) + (lost ? " is gone by now" : " has been overwritten since"));
  }
  if (storage == target) return take_block_waiting(target);
  if (lost || (!reads && each.place == Place::host)) return borrow(storage);
  each.pin = pin_;
  use(storage, true);
  if ((flags & kWrite) == 0) return;
  if (each.copying_out) wait_for_departure(storage, UM_SPAN_WAIT_COPY);
  wait_for_arrival(storage);
  each.host_valid = false;
}

void SwapExecutor::borrow(int32_t storage) {
  state(storage).pin = pin_;
  take_block_waiting(storage);
  borrowed_.push_back(storage);
}

bool SwapExecutor::is_borrowed(int32_t storage) const {
  return std::find(borrowed_.begin(), borrowed_.end(), storage) != borrowed_.end();
}

void SwapExecutor::give_back_borrowed() {
  const auto done = std::stable_partition(borrowed_.begin(), borrowed_.end(), [&](int32_t storage) {
    return last_touch_[static_cast<size_t>(storage)] > op_;
  });
  for (auto storage = done; storage != borrowed_.end(); ++storage) release(*storage);
  borrowed_.erase(done, borrowed_.end());
}

}  // namespace um::simulator
