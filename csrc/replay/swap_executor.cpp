#include "replay/swap_executor.h"

#include <algorithm>
#include <string>

#include "base/error.h"

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
      plan_(plan),
      options_(options),
      allocator_(
          make_allocator(static_cast<AllocatorModel>(options.allocator), options.budget_bytes, options.chunk_bytes)),
      link_(link, *this),
      victims_(trace_, static_cast<Eviction>(options.eviction)),
      states_(trace.storage_count),
      starts_on_host_(trace.storage_count),
      last_touch_(trace.storage_count, -1) {
  result_.peak_op = result_.failed_op = UM_UNKNOWN;
  check_plan();
  find_first_actions();
}

void SwapExecutor::run() {
  for (bool steady = false; iteration_ < options_.iterations && !steady;) {
    const um_swap_result previous = result_;
    begin_iteration();
    for (int32_t op = 0; op < trace_.op_count(); ++op) step(op);
    steady = iteration_ > 1 && alike(previous, result_);
  }
  const um_swap_result ended = result_;
  while (link_.next_event_ns() != SwapLink::kNever) link_.advance_to(link_.next_event_ns());
  // What still runs when an iteration ends is counted in the next one: as much as this one has had from the last.
  if (iteration_ > 1) result_ = ended;
  result_.total_ns = std::max(compute_ns_, link_.now_ns());
}

void SwapExecutor::begin_iteration() {
  result_ = begun_anew(result_);
  result_.iterations = ++iteration_;
  spans_.clear();
  last_span_ = 0;
  next_action_ = 0;
  op_ = running_op_ = -1;
  if (iteration_ > 1) carry_over();
  events_after(-1);
  for (SwapState& each : states_) each.last_writer = -1;
}

// What lives on has its index of the next iteration; what does not is gone.
void SwapExecutor::carry_over() {
  std::vector<int32_t> names(states_.size());
  for (int32_t storage = 0; storage < trace_.storage_count(); ++storage) {
    const int32_t as = trace_.continues_as(storage);
    names[static_cast<size_t>(storage)] = as >= 0 ? as : storage;
    if (as < 0 && state(storage).place != Place::dead) end_life(storage);
  }
  const std::vector<SwapState> old = states_;
  for (int32_t storage = 0; storage < trace_.storage_count(); ++storage) {
    const int32_t from = trace_.continued_from(storage);
    state(storage) = from >= 0 ? old[static_cast<size_t>(from)] : SwapState{};
    state(storage).birth = -1;
  }
  link_.rename(names);
  victims_.next_iteration();
}

void SwapExecutor::step(int32_t op) {
  op_ = op;
  const um_trace& columns = trace_.columns();
  wait_for_host();
  note_op(op);
  run_actions(op, false);
  ++pin_;
  use_all(op);
  events_inside(op);
  for (const int32_t storage : arrivals_) wait_for_arrival(storage);
  arrivals_.clear();
  pay_for_mappings();
  const int64_t duration_ns = std::max<int64_t>(columns.op_duration_ns[op], 0);
  result_.compute_ns += duration_ns;
  execute(duration_ns, UM_SPAN_OP);
  settle_writes(op);
  for (const int32_t storage : frees_after_op_) end_life(storage);
  frees_after_op_.clear();
  if (columns.op_host_touch[op] != 0) host_ns_ = std::max(host_ns_, compute_ns_);
  events_after(op);
  if (freed_) link_.start_waiting();
  run_actions(op, true);
}

void SwapExecutor::wait_for_host() {
  host_ns_ += options_.op_issue_ns;
  const int64_t ready_ns = std::max(host_ns_, compute_ns_ + options_.op_sync_ns);
  if (ready_ns > compute_ns_) stand_still(ready_ns, UM_SPAN_CALL, -1, &result_.wait_host_ns);
}

// Everything that the op touches is on the device or on its way when this returns.
void SwapExecutor::use_all(int32_t op) {
  const um_trace& columns = trace_.columns();
  const uint64_t begin = trace_.first_access(op), end = trace_.first_access(op + 1);
  for (uint64_t row = begin; row < end; ++row) state(columns.access_storage[row]).pin = pin_;
  // The first access of each decides whether its contents are needed, so the order of the rows matters.
  for (uint64_t row = begin; row < end; ++row) use(columns.access_storage[row], !trace_.writes_all(row));
  for (uint64_t row = begin; row < end; ++row) {
    const int32_t storage = columns.access_storage[row];
    if ((columns.access_flags[row] & kWrite) != 0 && state(storage).copying_out) {
      wait_for_departure(storage, UM_SPAN_WAIT_COPY);  // the host's copy would be of half-written contents
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
    ++pin_;  // no op works with what there was before
    event(row);
  }
}

void SwapExecutor::event(uint64_t row) {
  const int32_t storage = trace_.columns().event_storage[row];
  switch (trace_.columns().event_kind[row]) {
    case kAllocate:
      if (op_ >= 0) return make(storage);
      if (state(storage).place == Place::dead) place_first(storage);  // else it is carried over
      return;
    case kFree:
      return end_life(storage);
    case kHostWrite:
    case kHostRead:
      // What was there when the iteration began has its contents already.
      if (op_ < 0 && iteration_ > 1 && trace_.continued_from(storage) >= 0) return;
      return copy_for_host(row);
    default:  // served faults are of unified memory
      return;
  }
}

// Ordered like the work of the compute queue: it waits for the copy, and the host too where it reads.
void SwapExecutor::copy_for_host(uint64_t row) {
  const um_trace& columns = trace_.columns();
  const int32_t storage = columns.event_storage[row];
  const bool reads = columns.event_kind[row] == kHostRead;
  const int64_t bytes = columns.event_bytes[row];
  state(storage).pin = pin_;
  use(storage, reads || bytes != trace_.bytes(storage));
  wait_for_arrival(storage);
  if (!reads && state(storage).copying_out) wait_for_departure(storage, UM_SPAN_WAIT_COPY);
  host_copy_ = ++copies_;
  const Direction direction = reads ? kToHost : kToDevice;
  link_.submit(direction, {bytes, storage, op_, iteration_, host_copy_, UM_CAUSE_USER}, true);
  while (host_copy_ != 0) stand_still(link_.next_event_ns(), UM_SPAN_WAIT_COPY, storage, &result_.wait_copy_ns);
  if (reads) {
    host_ns_ = std::max(host_ns_, compute_ns_);
  } else {
    state(storage).written = true;
    state(storage).host_valid = false;
    state(storage).last_writer = op_;
  }
}

void SwapExecutor::settle_writes(int32_t op) {
  const um_trace& columns = trace_.columns();
  for (uint64_t row = trace_.first_access(op); row < trace_.first_access(op + 1); ++row) {
    SwapState& each = state(columns.access_storage[row]);
    if ((columns.access_flags[row] & kWrite) != 0) {
      each.written = true;
      each.host_valid = false;
      each.last_writer = op;
    }
    if (victims_.any()) victims_.used(columns.access_storage[row], op, row);
  }
}

void SwapExecutor::execute(int64_t duration_ns, um_span_kind kind) {
  span(compute_ns_, compute_ns_ + duration_ns, kind, -1);
  compute_ns_ += duration_ns;
  link_.advance_to(compute_ns_);
}

void SwapExecutor::pay_for_mappings() {
  const uint64_t chunks = allocator_->chunks_mapped() - chunks_paid_;
  chunks_paid_ += chunks;
  const int64_t cost_ns = static_cast<int64_t>(chunks) * options_.map_ns_per_chunk;
  if (cost_ns > 0) stand_still(compute_ns_ + cost_ns, UM_SPAN_CALL, -1, &result_.map_ns);
}

void SwapExecutor::stand_still(int64_t until_ns, um_span_kind kind, int32_t storage, int64_t* account) {
  link_.advance_to(until_ns);
  *account += until_ns - compute_ns_;
  span(compute_ns_, until_ns, kind, storage);
  compute_ns_ = until_ns;
}

void SwapExecutor::span(int64_t start_ns, int64_t end_ns, um_span_kind kind, int32_t storage) {
  const bool stall = kind != UM_SPAN_OP && kind != UM_SPAN_RECOMPUTE;
  if (options_.spans == 0 || (stall && end_ns == start_ns)) return;
  if (stall && last_span_ < spans_.size()) {  // one stall is one span, however much happens in it
    um_span& last = spans_[last_span_];
    if (last.kind == kind && last.storage == storage && last.op == op_ &&
        last.start_ns + last.duration_ns == start_ns) {
      last.duration_ns += end_ns - start_ns;
      return;
    }
  }
  last_span_ = spans_.size();
  spans_.push_back({start_ns, end_ns - start_ns, 0, op_, storage, UM_TRACK_COMPUTE, static_cast<uint8_t>(kind),
                    UM_CAUSE_USER, 0, iteration_});
}

void SwapExecutor::copy_span(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine) {
  if (options_.spans == 0) return;
  const auto track = static_cast<uint8_t>(direction == kToDevice ? UM_TRACK_H2D : UM_TRACK_D2H);
  spans_.push_back({start_ns, link_.now_ns() - start_ns, copy.bytes, copy.op, copy.storage, track, UM_SPAN_COPY,
                    static_cast<uint8_t>(copy.cause), engine, copy.step});
}

}  // namespace um::simulator
