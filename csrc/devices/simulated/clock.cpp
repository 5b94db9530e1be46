#include "devices/simulated/clock.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace um::simulator {
namespace {

enum Direction { kToDevice = 0, kToHost = 1 };

constexpr int64_t kBlock = static_cast<int64_t>(kBlockBytes);

int64_t rounded(double ns) { return std::llround(std::min(ns, 9e18)); }

int64_t duration_ns(int64_t bytes, uint64_t bytes_per_s) {
  return rounded(static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s));
}

}  // namespace

void Clock::begin_step(uint32_t step) {
  step_ = step;
  op_ = -1;
}

void Clock::begin_op(int32_t op, const FaultShape& shape) {
  op_ = op;
  shape_ = shape;
  host_ns_ += launch_ns_;
}

void Clock::end_op(int64_t duration, bool host_waits) {
  tally_.host_late_ns += std::max<int64_t>(host_ns_ - now_ns_, 0);
  now_ns_ = std::max(now_ns_, host_ns_);
  close_faults();
  if (held_ns_ > now_ns_) stall(UM_SPAN_WAIT_COPY, UM_CAUSE_USER, held_ns_ - now_ns_, 0);
  if (remote_op_bytes_ > 0) {  // the kernel and the link work at the same time: the slower one counts
    const int64_t over_ns = duration_ns(remote_op_bytes_, costs_.remote_bytes_per_s) - duration;
    stall(UM_SPAN_REMOTE, UM_CAUSE_COHERENCE, std::max<int64_t>(over_ns, 0), remote_op_bytes_);
    remote_op_bytes_ = 0;
  }
  draw(UM_TRACK_COMPUTE, UM_SPAN_OP, UM_CAUSE_USER, now_ns_, duration, 0);
  tally_.compute_ns += duration;
  now_ns_ += duration;
  if (host_waits) host_ns_ = std::max(host_ns_, now_ns_);
  op_ = -1;
  lock_ns_ = 0;
}

Tally Clock::take_tally() {
  close_faults();
  return std::exchange(tally_, Tally{});
}

// ---- spans ----------------------------------------------------------------------------------------------------------

std::vector<um_span> Clock::take_spans() {
  std::fill(std::begin(last_span_), std::end(last_span_), kNoSpan);
  return std::exchange(spans_, {});
}

// What continues the track's last span is joined to it.
void Clock::draw(um_track track, um_span_kind kind, um_cause cause, int64_t start_ns, int64_t duration, int64_t bytes) {
  size_t& last = last_span_[track];
  if (last != kNoSpan && kind != UM_SPAN_OP) {
    um_span& span = spans_[last];
    if (span.kind == kind && span.cause == cause && span.op == op_ && span.storage == storage_ && span.step == step_ &&
        span.start_ns + span.duration_ns == start_ns) {
      span.duration_ns += duration;
      span.bytes += bytes;
      return;
    }
  }
  last = spans_.size();
  spans_.push_back({start_ns, duration, bytes, op_, storage_, static_cast<uint8_t>(track), static_cast<uint8_t>(kind),
                    static_cast<uint8_t>(cause), 0, step_});
}

void Clock::stall(um_span_kind kind, um_cause cause, int64_t duration, int64_t bytes) {
  draw(UM_TRACK_COMPUTE, kind, cause, now_ns_, duration, bytes);
  int64_t& sum = kind == UM_SPAN_REMOTE      ? tally_.remote_ns
                 : kind == UM_SPAN_WAIT_ROOM ? tally_.wait_room_ns
                                             : tally_.wait_copy_ns;
  sum += duration;
  now_ns_ += duration;
}

// ---- the host -------------------------------------------------------------------------------------------------------

void Clock::call(int64_t duration) {
  if (duration == 0) return;
  draw(UM_TRACK_HOST, UM_SPAN_CALL, UM_CAUSE_USER, host_ns_, duration, 0);
  host_ns_ += duration;
  tally_.call_ns += duration;
}

void Clock::advise_call(int64_t duration) {
  call(duration);
  if (op_ >= 0) lock_ns_ += duration;
}

// ---- copies ---------------------------------------------------------------------------------------------------------

// While the other engine is busy both are slower. What it was given earlier keeps its speed.
int64_t Clock::transfer_ns(int direction, int64_t start_ns, int64_t bytes, double records, um_cause cause) const {
  const double fixed_ns = records * static_cast<double>(link_.fixed_ns[direction]);
  double alone = link_.bytes_per_s[direction], both = link_.both_bytes_per_s[direction];
  if (cause == UM_CAUSE_USER && costs_.prefetch_bytes_per_s > 0) {
    alone = std::min(alone, static_cast<double>(costs_.prefetch_bytes_per_s));
    both = std::min(both, static_cast<double>(costs_.prefetch_bytes_per_s));
  }
  const double busy_ns = static_cast<double>(engine_free_ns_[1 - direction] - start_ns) - fixed_ns;
  const double shared_bytes = std::clamp(busy_ns * 1e-9 * both, 0.0, static_cast<double>(bytes));
  return rounded(fixed_ns + shared_bytes * 1e9 / both + (static_cast<double>(bytes) - shared_bytes) * 1e9 / alone);
}

// `before_ns`: what the engine waits for when its turn has come. When the copy has ended.
int64_t Clock::transfer(int direction, int64_t earliest_ns, int64_t before_ns, int64_t bytes, um_cause cause) {
  const int64_t start_ns = std::max(earliest_ns, engine_free_ns_[direction]) + before_ns;
  const int64_t copy_ns = transfer_ns(direction, start_ns, bytes, 1, cause);
  draw(direction == kToDevice ? UM_TRACK_H2D : UM_TRACK_D2H, UM_SPAN_COPY, cause, start_ns, copy_ns, bytes);
  tally_.copy_ns[direction] += copy_ns;
  tally_.records[direction] += 1;
  engine_free_ns_[direction] = start_ns + copy_ns;
  return start_ns + copy_ns;
}

// In the ops' order the driver's own thread does it when its turn has come; beside them the calling thread does
// (uvm/uvm_migrate.c, and which stream it is decides).
int64_t Clock::migrate(const Outcome& outcome, bool first_mapping, Lane lane, int64_t chunk_ns) {
  // What is there already is looked at under its lock, as in a fault's service, and no more.
  const int64_t block_ns = outcome.count == 0 ? costs_.block_ns : costs_.prefetch_block_ns;
  const int64_t driver_ns = block_ns + (first_mapping ? costs_.first_map_ns : 0);
  if (lane == Lane::beside) call(driver_ns);
  int64_t issued_ns = std::max(now_ns_, host_ns_);
  if (lane == Lane::ops) migration_ns_ = issued_ns = std::max(issued_ns, migration_ns_) + driver_ns;
  int64_t room_ns = std::max(issued_ns, chunk_ns), ready_ns = room_ns;
  um_span_kind kind = chunk_ns > issued_ns ? UM_SPAN_WAIT_ROOM : UM_SPAN_WAIT_COPY;
  for (int i = 0; i < outcome.count; ++i) {
    const Action& action = outcome.actions[i];
    switch (action.what) {
      case Do::evict_copy:
        room_ns = transfer(kToHost, issued_ns, costs_.evict_ns, kBlock, UM_CAUSE_EVICTION);
        ready_ns = std::max(ready_ns, room_ns);
        kind = UM_SPAN_WAIT_ROOM;
        break;
      case Do::evict_drop:
        room_ns = issued_ns + costs_.evict_ns;
        break;
      case Do::copy_h2d:
      case Do::copy_d2h:
        ready_ns = transfer(action.what == Do::copy_h2d ? kToDevice : kToHost, room_ns, 0, kBlock, UM_CAUSE_USER);
        kind = UM_SPAN_WAIT_COPY;
        break;
      case Do::zero_device:
        filler_free_ns_ = std::max(filler_free_ns_, room_ns) + duration_ns(kBlock, costs_.zero_bytes_per_s);
        ready_ns = filler_free_ns_;
        break;
      case Do::zero_host:
      case Do::drop_host:
      case Do::drop_device:
        break;
    }
  }
  if (lane == Lane::ops && ready_ns > migration_end_ns_) {
    migration_end_ns_ = ready_ns;
    migration_kind_ = kind;
  }
  return ready_ns;
}

void Clock::end_migration() {
  close_faults();
  migration_ns_ = 0;
  now_ns_ = std::max(now_ns_, host_ns_);
  if (migration_end_ns_ > now_ns_) stall(migration_kind_, UM_CAUSE_USER, migration_end_ns_ - now_ns_, 0);
}

void Clock::copy(int direction, int64_t bytes) {
  close_faults();
  now_ns_ = std::max(now_ns_, host_ns_);
  if (bytes > 0) {
    const int64_t end_ns = transfer(direction, now_ns_, 0, bytes, UM_CAUSE_USER);
    stall(UM_SPAN_WAIT_COPY, UM_CAUSE_USER, end_ns - now_ns_, bytes);
  }
  host_ns_ = std::max(host_ns_, now_ns_);
}

void Clock::wait_for(int64_t ready_ns) {
  close_faults();
  now_ns_ = std::max(now_ns_, host_ns_);
  if (ready_ns > now_ns_) stall(UM_SPAN_WAIT_COPY, UM_CAUSE_USER, ready_ns - now_ns_, 0);
}

int64_t Clock::copy_beside(int direction, int64_t earliest_ns, int64_t bytes) {
  return transfer(direction, earliest_ns, 0, bytes, UM_CAUSE_USER);
}

void Clock::access_remotely(int64_t bytes, int64_t accesses) {
  remote_op_bytes_ += bytes;
  tally_.remote_bytes += bytes;
  tally_.remote_accesses += accesses;
}

// ---- faults ---------------------------------------------------------------------------------------------------------

void Clock::open_faults() {
  now_ns_ = std::max(now_ns_, host_ns_);
  if (faults_open_) return;
  faults_open_ = true;
  faults_start_ns_ = now_ns_;
  for (FaultCopies& copies : fault_copies_) copies = {};
}

// In truth evictions and fetches alternate; they are drawn as one copy each way.
void Clock::close_faults() {
  if (!faults_open_) return;
  faults_open_ = false;
  const int64_t end_ns = now_ns_;
  const FaultCopies &in = fault_copies_[kToDevice], &out = fault_copies_[kToHost];
  draw(UM_TRACK_COMPUTE, UM_SPAN_FAULT, UM_CAUSE_COHERENCE, faults_start_ns_, end_ns - faults_start_ns_, in.bytes);
  if (out.bytes > 0) draw(UM_TRACK_D2H, UM_SPAN_COPY, UM_CAUSE_EVICTION, out.from_ns, out.duration_ns, out.bytes);
  if (in.bytes > 0)
    draw(UM_TRACK_H2D, UM_SPAN_COPY, UM_CAUSE_COHERENCE, end_ns - in.duration_ns, in.duration_ns, in.bytes);
  tally_.fault_ns += end_ns - faults_start_ns_;
}

void Clock::copy_in_service(int direction, int64_t bytes, double records) {
  FaultCopies& copies = fault_copies_[direction];
  now_ns_ = std::max(now_ns_, engine_free_ns_[direction]);
  if (copies.bytes == 0) copies.from_ns = now_ns_;
  const int64_t copy_ns = transfer_ns(direction, now_ns_, bytes, records, UM_CAUSE_COHERENCE);
  now_ns_ += copy_ns;
  copies.duration_ns += copy_ns;
  copies.bytes += bytes;
  tally_.copy_ns[direction] += copy_ns;
  tally_.records[direction] += records;
  engine_free_ns_[direction] = now_ns_;
}

void Clock::serve(const Outcome& outcome, bool first_mapping, bool at_once, int64_t chunk_ns) {
  open_faults();
  const int64_t begin_ns = now_ns_;
  now_ns_ = std::max(now_ns_, chunk_ns);
  now_ns_ += std::exchange(lock_ns_, 0);
  const FaultShape shape = at_once ? FaultShape{1, 1, 1, 1} : shape_;
  bool migrates = false;
  for (int i = 0; i < outcome.count; ++i) migrates |= outcome.actions[i].what == Do::copy_h2d;
  const double per_service_ns = static_cast<double>(costs_.block_ns + (migrates ? costs_.migrate_ns : 0));
  now_ns_ += rounded(shape.batches * static_cast<double>(costs_.batch_ns) +
                     shape.entries * static_cast<double>(costs_.entry_ns) + shape.services * per_service_ns) +
             (first_mapping ? costs_.first_map_ns : 0);
  for (int i = 0; i < outcome.count; ++i) {
    const Action& action = outcome.actions[i];
    switch (action.what) {
      case Do::evict_copy:
        now_ns_ += costs_.evict_ns;
        copy_in_service(kToHost, kBlock, 1);  // a whole chunk: contiguous
        break;
      case Do::evict_drop:
        now_ns_ += costs_.evict_ns;
        break;
      case Do::copy_h2d:
        copy_in_service(kToDevice, kBlock, shape.records);
        break;
      case Do::copy_d2h:
        copy_in_service(kToHost, kBlock, shape.records);
        break;
      case Do::zero_device:
        now_ns_ += duration_ns(kBlock, costs_.zero_bytes_per_s);
        break;
      case Do::zero_host:
      case Do::drop_host:
      case Do::drop_device:
        break;
    }
  }
  tally_.services += shape.services;
  tally_.batches += shape.batches;
  tally_.entries += shape.entries;
  fault_service_ns_ += now_ns_ - begin_ns;
}

}  // namespace um::simulator
