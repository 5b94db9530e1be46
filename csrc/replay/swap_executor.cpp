#include "replay/swap_executor.h"

namespace um::simulator {

namespace {

// What is of all iterations, and so is not begun anew.
um_swap_result begun_anew(const um_swap_result& result) {
  um_swap_result fresh{};
  fresh.peak_live_bytes = result.peak_live_bytes;
  fresh.peak_reserved_bytes = result.peak_reserved_bytes;
  fresh.fragmentation_bytes = result.fragmentation_bytes;
  fresh.peak_op = result.peak_op;
  fresh.failed_op = UM_UNKNOWN;
  return fresh;
}

bool alike(const um_swap_result& a, const um_swap_result& b) {
  return a.compute_ns == b.compute_ns && a.recompute_ns == b.recompute_ns && a.wait_copy_ns == b.wait_copy_ns &&
         a.wait_room_ns == b.wait_room_ns && a.map_ns == b.map_ns && a.wait_host_ns == b.wait_host_ns &&
         a.swap_in_bytes == b.swap_in_bytes && a.swap_out_bytes == b.swap_out_bytes && a.swap_ins == b.swap_ins &&
         a.swap_outs == b.swap_outs && a.evictions == b.evictions && a.clean_drops == b.clean_drops;
}

}  // namespace

SwapExecutor::SwapExecutor(const um_trace& trace, const um_plan* plan, const um_link& link,
                           const um_swap_options& options)
    : trace_(trace),
      options_(options),
      storages_(trace_, link, options_, result_),
      plan_(plan, trace_, storages_, result_) {
  result_.peak_op = result_.failed_op = UM_UNKNOWN;
}

void SwapExecutor::run() {
  const SwapClock& clock = storages_.clock;
  for (bool steady = false; clock.iteration() < options_.iterations && !steady;) {
    const um_swap_result previous = result_;
    begin_iteration();
    for (int32_t op = 0; op < trace_.op_count(); ++op) step(op);
    steady = clock.iteration() > 1 && alike(previous, result_);
  }
  const um_swap_result ended = result_;
  const int64_t total_ns = storages_.clock.run_out();
  // What still runs when an iteration ends is counted in the next one: as much as this one has had from the last.
  if (clock.iteration() > 1) result_ = ended;
  result_.total_ns = total_ns;
}

void SwapExecutor::begin_iteration() {
  result_ = begun_anew(result_);
  storages_.clock.begin_iteration();
  storages_.memory.begin_iteration();
  plan_.begin_iteration();
  result_.iterations = storages_.clock.iteration();
  if (result_.iterations > 1) storages_.next_iteration();
  events_after(-1);
}

void SwapExecutor::step(int32_t op) {
  const um_trace& columns = trace_.columns();
  SwapClock& clock = storages_.clock;
  clock.op = op;
  clock.issue_op();
  storages_.memory.begin_op(op);
  plan_.run(op, false);
  storages_.next_pin();
  use_all(op);
  events_inside(op);
  storages_.wait_for_arrivals();
  clock.execute(columns.op_duration_ns[op], UM_SPAN_OP);
  settle_writes(op);
  for (const int32_t storage : frees_after_op_) storages_.end_life(storage);
  frees_after_op_.clear();
  if (columns.op_host_touch[op] != 0) clock.wait_on_host();
  events_after(op);
  storages_.retry();
  plan_.run(op, true);
}

// Everything that the op touches is on the device or on its way when this returns.
void SwapExecutor::use_all(int32_t op) {
  const um_trace& columns = trace_.columns();
  const uint64_t begin = trace_.first_access(op), end = trace_.first_access(op + 1);
  for (uint64_t row = begin; row < end; ++row) storages_.pin(columns.access_storage[row]);
  // The first access of each decides whether its contents are needed, so the order of the rows matters.
  for (uint64_t row = begin; row < end; ++row) storages_.use(columns.access_storage[row], !trace_.writes_all(row));
  for (uint64_t row = begin; row < end; ++row) {
    const int32_t storage = columns.access_storage[row];
    if ((columns.access_flags[row] & kWrite) != 0 && storages_.state(storage).copying_out) {
      storages_.wait_for_departure(storage, UM_SPAN_WAIT_COPY);  // the host's copy would be of half-written contents
    }
  }
}

// What is freed inside an op after the last allocation in it is in use until the op ends.
void SwapExecutor::events_inside(int32_t op) {
  const um_trace& columns = trace_.columns();
  const uint64_t begin = trace_.first_event(op);
  uint64_t end = begin, last_allocation = begin;
  while (end < trace_.first_event(op + 1) && columns.event_inside[end] != 0) ++end;
  for (uint64_t row = begin; row < end; ++row) {
    if (columns.event_kind[row] == kAllocate) last_allocation = row;
  }
  for (uint64_t row = begin; row < end; ++row) {
    if (columns.event_kind[row] == kFree && row > last_allocation) {
      frees_after_op_.push_back(columns.event_storage[row]);
    } else {
      event(row);
    }
  }
}

void SwapExecutor::events_after(int32_t op) {
  const um_trace& columns = trace_.columns();
  for (uint64_t row = trace_.first_event(op); row < trace_.first_event(op + 1); ++row) {
    if (columns.event_inside[row] != 0) continue;
    storages_.next_pin();  // no op works with what there was before
    event(row);
  }
}

void SwapExecutor::event(uint64_t row) {
  const um_trace& columns = trace_.columns();
  const int32_t storage = columns.event_storage[row];
  const bool inside_step = storages_.clock.op >= 0;
  switch (columns.event_kind[row]) {
    case kAllocate:
      if (inside_step) return storages_.make(storage);
      if (storages_.state(storage).place == Place::dead)  // else it is carried over
        storages_.place_first(storage, plan_.starts_on_host(storage));
      return;
    case kFree:
      return storages_.end_life(storage);
    case kHostWrite:
    case kHostRead:
      // What was there when the iteration began has its contents already.
      if (!inside_step && storages_.clock.iteration() > 1 && trace_.continued_from(storage) >= 0) return;
      return storages_.copy_for_host(storage, columns.event_kind[row] == kHostRead, columns.event_bytes[row]);
    default:  // served faults are of unified memory
      return;
  }
}

void SwapExecutor::settle_writes(int32_t op) {
  const um_trace& columns = trace_.columns();
  for (uint64_t row = trace_.first_access(op); row < trace_.first_access(op + 1); ++row) {
    const int32_t storage = columns.access_storage[row];
    if ((columns.access_flags[row] & kWrite) != 0) storages_.state(storage).write(op);
    storages_.victims.used(storage, op, row);
  }
}

}  // namespace um::simulator
