#include "replay/swap_recompute.h"

#include <algorithm>
#include <set>

namespace um::simulator {

void SwapRecompute::run(const PlanAction& action) {
  SwapState& target = storages_.state(action.storage);
  if (target.place != Place::dropped && target.place != Place::host) {
    if (target.place == Place::leaving) storages_.cancel_swap_out(action.storage);
    ++result_.redundant_actions;
    return;
  }
  const auto first = static_cast<int32_t>(action.argument);
  const int32_t last = target.last_writer;
  if (last < first) action.wrong("no op from " + std::to_string(first) + " on has written the storage in this step");
  find_last_touches(action, last);
  begin_ = storages_.present_pin();
  int32_t& op = storages_.clock.op;
  for (op = first; op <= last; ++op) rerun(action, last);
  op = action.op;
  storages_.be_there(action.storage);
  target.host_valid = false;
}

// What the host writes while these ops run for the first time, they do not write again.
void SwapRecompute::find_last_touches(const PlanAction& action, int32_t last_op) {
  const um_trace& columns = trace_.columns();
  const auto first = static_cast<int32_t>(action.argument);
  std::set<int32_t> by_host;
  for (uint64_t event = trace_.first_event(first); event < trace_.first_event(last_op + 1); ++event) {
    const int32_t storage = columns.event_storage[event];
    if (columns.event_kind[event] == kHostWrite) by_host.insert(storage);
    // What no op touches is scratch of the one that makes it.
    if (columns.event_kind[event] == kAllocate) last_touch_[static_cast<size_t>(storage)] = columns.event_op[event];
  }
  const auto require = [&](int32_t storage) {
    if (by_host.count(storage) == 0) return;
    action.wrong("ops " + std::to_string(first) + " to " + std::to_string(last_op) +
                 " cannot run again: the host has written storage " + std::to_string(storage) + " in between");
  };
  require(action.storage);
  for (uint64_t access = trace_.first_access(first); access < trace_.first_access(last_op + 1); ++access) {
    require(columns.access_storage[access]);
    last_touch_[static_cast<size_t>(columns.access_storage[access])] = columns.access_op[access];
  }
}

void SwapRecompute::rerun(const PlanAction& action, int32_t last_op) {
  const um_trace& columns = trace_.columns();
  const int32_t op = storages_.clock.op;
  storages_.clock.issue_op();
  storages_.next_pin();
  for (const int32_t storage : borrowed_) storages_.pin(storage);
  storages_.pin(action.storage);
  for (uint64_t access = trace_.first_access(op); access < trace_.first_access(op + 1); ++access) {
    use(action, access, last_op);
  }
  for (uint64_t event = trace_.first_event(op); event < trace_.first_event(op + 1); ++event) {
    const int32_t storage = columns.event_storage[event];
    if (columns.event_kind[event] != kAllocate || columns.event_inside[event] == 0) continue;
    const bool gone = storages_.state(storage).place == Place::dead && !is_borrowed(storage);
    if (storage != action.storage && gone) borrow(storage);
  }
  storages_.wait_for_arrivals();
  ++result_.recomputed_ops;
  storages_.clock.execute(columns.op_duration_ns[op], UM_SPAN_RECOMPUTE);
  give_back_borrowed();
}

// One access of an op that runs again. What it works on has to be what it was the first time, and what it leaves has to
// be what is there now.
void SwapRecompute::use(const PlanAction& action, uint64_t access, int32_t last_op) {
  const um_trace& columns = trace_.columns();
  const int32_t storage = columns.access_storage[access];
  if (is_borrowed(storage)) return;
  const bool is_target = storage == action.storage;
  const uint8_t flags = columns.access_flags[access];
  const bool reads = (flags & kRead) != 0 && !trace_.writes_all(access);
  const bool writes = (flags & kWrite) != 0;
  SwapState& each = storages_.state(storage);
  const bool lost = is_target || each.place == Place::dead || each.place == Place::dropped;
  if (is_target && each.block != Allocator::kNoRoom) return;
  if (reads && lost) cannot_run(action, storage, "is gone by now");
  if (is_target) return storages_.take_room(storage);
  if (lost || (!reads && each.place == Place::host)) return borrow(storage);
  if (each.last_writer > last_op) cannot_run(action, storage, "has been overwritten since");
  const bool made_again = each.made_again > begin_ || each.birth >= action.argument;
  const bool running_statistics = each.birth < 0 && writes;
  if (reads && each.last_writer >= storages_.clock.op && !made_again && !running_statistics) {
    cannot_run(action, storage, "has been overwritten since");
  }
  storages_.pin(storage);
  storages_.use(storage, true);
  if (!writes) return;
  if (each.copying_out) storages_.wait_for_departure(storage, UM_SPAN_WAIT_COPY);
  storages_.wait_for_arrival(storage);
  each.host_valid = false;
  if (trace_.writes_all(access)) each.made_again = storages_.present_pin();
}

void SwapRecompute::cannot_run(const PlanAction& action, int32_t storage, const std::string& why) const {
  action.wrong("op " + std::to_string(storages_.clock.op) + " cannot run again: storage " + std::to_string(storage) +
               " " + why);
}

void SwapRecompute::borrow(int32_t storage) {
  storages_.pin(storage);
  storages_.take_room(storage);
  borrowed_.push_back(storage);
}

bool SwapRecompute::is_borrowed(int32_t storage) const {
  return std::find(borrowed_.begin(), borrowed_.end(), storage) != borrowed_.end();
}

void SwapRecompute::give_back_borrowed() {
  const auto done = std::stable_partition(borrowed_.begin(), borrowed_.end(), [&](int32_t storage) {
    return last_touch_[static_cast<size_t>(storage)] > storages_.clock.op;
  });
  for (auto storage = done; storage != borrowed_.end(); ++storage) storages_.release(*storage);
  borrowed_.erase(done, borrowed_.end());
}

}  // namespace um::simulator
