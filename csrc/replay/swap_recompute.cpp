// Ops that run again to make a storage whose contents were dropped.
#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "replay/swap_executor.h"

namespace um::simulator {

// From the plan's first op to the last one that wrote the storage. What they need besides and is gone by now is made
// again for as long as they need it; only the storage itself stays.
void SwapExecutor::recompute(uint64_t row) {
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
  find_last_touches(row, first, last);
  const int32_t anchor = op_;
  rerun_begin_ = pin_;
  rerun_first_ = first;
  for (op_ = first; op_ <= last; ++op_) rerun(row, target, last);
  op_ = anchor;
  state(target).place = Place::device;
  state(target).host_valid = false;
  victims_.returned(target);
}

// What the host writes while these ops run for the first time, they do not write again.
void SwapExecutor::find_last_touches(uint64_t row, int32_t first, int32_t last) {
  const um_trace& columns = trace_.columns();
  std::set<int32_t> by_host;
  for (uint64_t event = trace_.first_event(first); event < trace_.first_event(last + 1); ++event) {
    const int32_t storage = columns.event_storage[event];
    if (columns.event_kind[event] == kHostWrite) by_host.insert(storage);
    // What no op touches is scratch of the one that makes it.
    if (columns.event_kind[event] == kAllocate) last_touch_[static_cast<size_t>(storage)] = columns.event_op[event];
  }
  const auto require = [&](int32_t storage) {
    if (by_host.count(storage) == 0) return;
    wrong_plan(row, "ops " + std::to_string(first) + " to " + std::to_string(last) +
                        " cannot run again: the host has written storage " + std::to_string(storage) + " in between");
  };
  require(plan_->storage[row]);
  for (uint64_t access = trace_.first_access(first); access < trace_.first_access(last + 1); ++access) {
    require(columns.access_storage[access]);
    last_touch_[static_cast<size_t>(columns.access_storage[access])] = columns.access_op[access];
  }
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

// One access of an op that runs again. What it works on has to be what it was the first time, and what it leaves has to
// be what is there now.
void SwapExecutor::use_again(uint64_t row, uint64_t access, int32_t target, int32_t last_op) {
  const um_trace& columns = trace_.columns();
  const int32_t storage = columns.access_storage[access];
  if (is_borrowed(storage)) return;
  const uint8_t flags = columns.access_flags[access];
  const bool reads = (flags & kRead) != 0 && !trace_.writes_all(access);
  const bool writes = (flags & kWrite) != 0;
  SwapState& each = state(storage);
  const bool lost = storage == target || each.place == Place::dead || each.place == Place::dropped;
  if (storage == target && each.block != Allocator::kNoRoom) return;
  if (reads && lost) cannot_run_again(row, storage, "is gone by now");
  if (storage == target) return take_block_waiting(target);
  if (lost || (!reads && each.place == Place::host)) return borrow(storage);
  if (each.last_writer > last_op) cannot_run_again(row, storage, "has been overwritten since");
  const bool made_again = each.made_again > rerun_begin_ || each.birth >= rerun_first_;
  const bool running_statistics = each.birth < 0 && writes;
  if (reads && each.last_writer >= op_ && !made_again && !running_statistics) {
    cannot_run_again(row, storage, "has been overwritten since");
  }
  each.pin = pin_;
  use(storage, true);
  if (!writes) return;
  if (each.copying_out) wait_for_departure(storage, UM_SPAN_WAIT_COPY);
  wait_for_arrival(storage);
  each.host_valid = false;
  if (trace_.writes_all(access)) each.made_again = pin_;
}

void SwapExecutor::cannot_run_again(uint64_t row, int32_t storage, const std::string& why) const {
  wrong_plan(row, "op " + std::to_string(op_) + " cannot run again: storage " + std::to_string(storage) + " " + why);
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
