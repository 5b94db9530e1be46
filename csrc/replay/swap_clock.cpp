#include "replay/swap_clock.h"

#include <algorithm>

namespace um::simulator {

void SwapClock::begin_iteration() {
  ++iteration_;
  spans_.clear();
  last_span_ = 0;
  op = -1;
}

void SwapClock::issue_op() {
  host_ns_ += options_.op_issue_ns;
  const int64_t ready_ns = std::max(host_ns_, compute_ns_ + options_.op_sync_ns);
  if (ready_ns > compute_ns_) stand_still(ready_ns, UM_SPAN_CALL, -1, &result_.wait_host_ns);
}

void SwapClock::execute(int64_t duration_ns, um_span_kind kind) {
  duration_ns = std::max<int64_t>(duration_ns, 0);
  (kind == UM_SPAN_OP ? result_.compute_ns : result_.recompute_ns) += duration_ns;
  span(compute_ns_, compute_ns_ + duration_ns, kind, -1);
  compute_ns_ += duration_ns;
  link.advance_to(compute_ns_);
}

void SwapClock::pay_for_mapping(uint64_t chunks) {
  const int64_t cost_ns = static_cast<int64_t>(chunks) * options_.map_ns_per_chunk;
  if (cost_ns > 0) stand_still(compute_ns_ + cost_ns, UM_SPAN_CALL, -1, &result_.map_ns);
}

void SwapClock::wait_for_link(um_span_kind kind, int32_t storage) {
  int64_t* const account = kind == UM_SPAN_WAIT_ROOM ? &result_.wait_room_ns : &result_.wait_copy_ns;
  stand_still(link.next_event_ns(), kind, storage, account);
}

void SwapClock::wait_on_host() { host_ns_ = std::max(host_ns_, compute_ns_); }

int64_t SwapClock::run_out() {
  while (link.next_event_ns() != SwapLink::kNever) link.advance_to(link.next_event_ns());
  return std::max(compute_ns_, link.now_ns());
}

void SwapClock::stand_still(int64_t until_ns, um_span_kind kind, int32_t storage, int64_t* account) {
  link.advance_to(until_ns);
  *account += until_ns - compute_ns_;
  span(compute_ns_, until_ns, kind, storage);
  compute_ns_ = until_ns;
}

void SwapClock::span(int64_t start_ns, int64_t end_ns, um_span_kind kind, int32_t storage) {
  const bool stall = kind != UM_SPAN_OP && kind != UM_SPAN_RECOMPUTE;
  if (options_.spans == 0 || (stall && end_ns == start_ns)) return;
  if (stall && last_span_ < spans_.size()) {  // one stall is one span, however much happens in it
    um_span& last = spans_[last_span_];
    if (last.kind == kind && last.storage == storage && last.op == op && last.start_ns + last.duration_ns == start_ns) {
      last.duration_ns += end_ns - start_ns;
      return;
    }
  }
  last_span_ = spans_.size();
  spans_.push_back({start_ns, end_ns - start_ns, 0, op, storage, UM_TRACK_COMPUTE, static_cast<uint8_t>(kind),
                    UM_CAUSE_USER, 0, iteration_});
}

void SwapClock::note_copy(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine) {
  if (options_.spans == 0) return;
  const auto track = static_cast<uint8_t>(direction == kToDevice ? UM_TRACK_H2D : UM_TRACK_D2H);
  spans_.push_back({start_ns, link.now_ns() - start_ns, copy.bytes, copy.op, copy.storage, track, UM_SPAN_COPY,
                    static_cast<uint8_t>(copy.cause), engine, copy.step});
}

}  // namespace um::simulator
