// Where storages are, and what must happen for them to be elsewhere.
#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "replay/swap_executor.h"

namespace um::simulator {

// ---- lives ---------------------------------------------------------------------------------------------------

void SwapExecutor::make(int32_t storage) {
  SwapState& each = state(storage);
  each = SwapState{};
  each.birth = op_;
  each.pin = pin_;  // an op that makes something works with it
  take_block_waiting(storage);
  each.place = Place::device;
  if (victims_.any()) victims_.made(storage, op_);
}

// What is there before the first op has contents. In the first iteration it takes what room there is; where evictions
// are allowed the rest begins on the host, which is where the first evictions would bring it.
void SwapExecutor::place_first(int32_t storage) {
  SwapState& each = state(storage);
  each = SwapState{};
  each.written = true;
  if (victims_.any()) victims_.made(storage, op_);
  bool on_host = starts_on_host_[static_cast<size_t>(storage)] != 0;
  const bool at_any_price = iteration_ > 1;
  if (!on_host && at_any_price) take_block_waiting(storage);
  if (!on_host && !at_any_price && !take_block(storage)) {
    if (!victims_.any()) no_room(storage);
    on_host = true;
  }
  each.host_valid = on_host;
  each.place = on_host ? Place::host : Place::device;
}

// Memory that a running copy works on is free when the copy ends.
void SwapExecutor::end_life(int32_t storage) {
  SwapState& each = state(storage);
  if (each.place == Place::dead) return;
  if (each.copy_runs) {
    if (each.place != Place::leaving) ++freeing_;
    orphans_.push_back({each.copy, each.block, trace_.bytes(storage)});
  } else {
    if (each.place == Place::leaving) --freeing_;
    if (each.place == Place::leaving || each.place == Place::device) release(storage);
  }
  each = SwapState{};
}

// ---- moves ---------------------------------------------------------------------------------------------------

// An op is about to touch it. What has to be copied first is added to `arrivals_`.
void SwapExecutor::use(int32_t storage, bool needs_contents) {
  SwapState& each = state(storage);
  switch (each.place) {
    case Place::dead:  // made inside the op
    case Place::device:
      return;
    case Place::leaving:
      return stay(storage);
    case Place::arriving:
      if (needs_contents || each.copy_runs) return arrivals_.push_back(storage);
      turn_back(storage);
      break;
    case Place::host:
      if (!needs_contents || !each.written) break;
      arrive(storage, true);
      return arrivals_.push_back(storage);
    case Place::dropped:
      if (!needs_contents) break;
      throw Error(UM_INVALID_ARGUMENT, "op " + std::to_string(op_) + " needs storage " + std::to_string(storage) +
                                           ", whose contents the plan has dropped: recompute it before that op");
  }
  take_block_waiting(storage);
  each.place = Place::device;
  victims_.returned(storage);
}

void SwapExecutor::arrive(int32_t storage, bool on_demand) {
  SwapState& each = state(storage);
  each.place = Place::arriving;
  each.on_demand = on_demand;
  if (on_demand) ++result_.on_demand_swap_ins;
  submit_arrival(storage, on_demand);
}

void SwapExecutor::submit_arrival(int32_t storage, bool first) {
  SwapState& each = state(storage);
  each.copy = ++copies_;
  const um_cause cause = each.on_demand ? UM_CAUSE_COHERENCE : UM_CAUSE_USER;
  link_.submit(kToDevice, {trace_.bytes(storage), storage, op_, iteration_, each.copy, cause}, first);
}

void SwapExecutor::leave(int32_t storage, um_cause cause) {
  SwapState& each = state(storage);
  if (each.host_valid || !each.written) {
    ++result_.clean_drops;
    release(storage);
    each.place = Place::host;
    return;
  }
  ++freeing_;
  each.place = Place::leaving;
  if (each.copying_out) {  // the copy that was cancelled still runs, and nothing has been written since
    each.copying_out = false;
    return;
  }
  each.copy = ++copies_;
  link_.submit(kToHost, {trace_.bytes(storage), storage, op_, iteration_, each.copy, cause}, false);
}

// A swap-out is not wanted any more. One that runs cannot be stopped, but the memory is not given away.
void SwapExecutor::stay(int32_t storage) {
  SwapState& each = state(storage);
  ++result_.cancelled;
  --freeing_;
  each.place = Place::device;
  each.copying_out = each.copy_runs;
  if (!each.copying_out) each.copy = 0;
  victims_.returned(storage);
}

// A swap-in that has not started is not wanted any more.
void SwapExecutor::turn_back(int32_t storage) {
  ++result_.cancelled;
  state(storage).copy = 0;
  state(storage).place = Place::host;
}

Begin SwapExecutor::begins(Direction direction, const Copy& copy) {
  if (copy.serial == host_copy_) return Begin::started;
  SwapState& each = state(copy.storage);
  const bool gone = each.copy != copy.serial;
  if (gone && !is_orphan(copy.serial)) return Begin::dropped;
  if (direction == kToDevice) {
    if (claimant_ >= 0 && claimant_ != copy.storage) return Begin::waits;
    if (!freed_ && refused_ == copy.serial) return Begin::waits;
    if (!take_block(copy.storage)) {
      freed_ = false;
      refused_ = copy.serial;
      return Begin::waits;
    }
  }
  if (!gone) each.copy_runs = true;
  ++(direction == kToDevice ? result_.swap_ins : result_.swap_outs);
  return Begin::started;
}

void SwapExecutor::ended(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine) {
  const bool for_host = copy.serial == host_copy_;
  copy_span(direction, copy, start_ns, engine);
  if (direction == kToDevice) (for_host ? result_.host_write_bytes : result_.swap_in_bytes) += copy.bytes;
  if (direction == kToHost) (for_host ? result_.host_read_bytes : result_.swap_out_bytes) += copy.bytes;
  if (for_host) {
    host_copy_ = 0;
    return;
  }
  SwapState& each = state(copy.storage);
  if (each.copy != copy.serial) return free_orphan(copy.serial);
  each.copy = 0;
  each.copy_runs = each.copying_out = false;
  each.host_valid = true;
  if (each.place == Place::arriving) {
    each.place = Place::device;
    victims_.returned(copy.storage);
  } else if (each.place == Place::leaving) {
    --freeing_;
    release(copy.storage);
    each.place = Place::host;
  }
}

bool SwapExecutor::is_orphan(uint32_t copy) const {
  return std::any_of(orphans_.begin(), orphans_.end(), [&](const Orphan& each) { return each.copy == copy; });
}

void SwapExecutor::free_orphan(uint32_t copy) {
  const auto orphan =
      std::find_if(orphans_.begin(), orphans_.end(), [&](const Orphan& each) { return each.copy == copy; });
  --freeing_;
  free_block(orphan->block, orphan->bytes);
  orphans_.erase(orphan);
}

// ---- room ----------------------------------------------------------------------------------------------------

bool SwapExecutor::take_block(int32_t storage) {
  const int64_t bytes = trace_.bytes(storage);
  if (bytes > 0) {
    const int64_t block = allocator_->allocate(static_cast<uint64_t>(bytes));
    if (block == Allocator::kNoRoom) return false;
    state(storage).block = block;
    live_bytes_ += bytes;
    note_peak();
  }
  return true;
}

void SwapExecutor::take_block_waiting(int32_t storage) {
  claimant_ = storage;
  while (!take_block(storage)) make_room(storage);
  claimant_ = -1;
}

void SwapExecutor::release(int32_t storage) {
  free_block(state(storage).block, trace_.bytes(storage));
  state(storage).block = Allocator::kNoRoom;
}

void SwapExecutor::free_block(int64_t block, int64_t bytes) {
  if (bytes == 0) return;
  allocator_->free(block);
  live_bytes_ -= bytes;
  freed_ = true;
}

// Brings about that there is more room than before, or fails. May have to be called again.
void SwapExecutor::make_room(int32_t storage) {
  if (freeing_ == 0) {
    const int32_t victim = victims_.pick([&](int32_t candidate) {
      const SwapState& each = state(candidate);
      if (each.place != Place::device || trace_.bytes(candidate) == 0) return SwapVictims::Candidate::no;
      return each.pin == pin_ ? SwapVictims::Candidate::not_now : SwapVictims::Candidate::yes;
    });
    if (victim >= 0) {
      ++result_.evictions;
      return leave(victim, UM_CAUSE_EVICTION);
    }
    // What is arriving can leave again once it is there.
    const bool nothing_leaves = freeing_ == 0 && !victims_.any();
    if (nothing_leaves || link_.next_event_ns() == SwapLink::kNever) no_room(storage);
  }
  stand_still(link_.next_event_ns(), UM_SPAN_WAIT_ROOM, storage, &result_.wait_room_ns);
}

void SwapExecutor::wait_for_arrival(int32_t storage) {
  bool first = false;
  while (state(storage).place == Place::arriving) {
    link_.start_waiting();
    if (state(storage).copy_runs || !link_.waits(kToDevice)) {
      stand_still(link_.next_event_ns(), UM_SPAN_WAIT_COPY, storage, &result_.wait_copy_ns);
    } else if (!first) {  // a copy for later finds no room and holds this one up
      first = true;
      submit_arrival(storage, true);
    } else {
      claimant_ = storage;
      make_room(storage);
      claimant_ = -1;
    }
  }
}

void SwapExecutor::wait_for_departure(int32_t storage, um_span_kind kind) {
  int64_t* account = kind == UM_SPAN_WAIT_ROOM ? &result_.wait_room_ns : &result_.wait_copy_ns;
  while (state(storage).place == Place::leaving || state(storage).copying_out) {
    stand_still(link_.next_event_ns(), kind, storage, account);
  }
}

void SwapExecutor::note_op(int32_t op) {
  running_op_ = op;
  if (options_.op_live_bytes != nullptr) options_.op_live_bytes[op] = 0;
  if (options_.op_reserved_bytes != nullptr) options_.op_reserved_bytes[op] = 0;
  note_peak();
}

void SwapExecutor::note_peak() {
  const auto reserved_bytes = static_cast<int64_t>(allocator_->reserved_bytes());
  result_.peak_live_bytes = std::max(result_.peak_live_bytes, live_bytes_);
  const auto raise = [&](int64_t* each_op, int64_t bytes) {
    if (each_op != nullptr && running_op_ >= 0) each_op[running_op_] = std::max(each_op[running_op_], bytes);
  };
  raise(options_.op_live_bytes, live_bytes_);
  raise(options_.op_reserved_bytes, reserved_bytes);
  const bool fuller = reserved_bytes == result_.peak_reserved_bytes && live_bytes_ > live_at_peak_bytes_;
  if (reserved_bytes <= result_.peak_reserved_bytes && !fuller) return;
  result_.peak_reserved_bytes = reserved_bytes;
  live_at_peak_bytes_ = live_bytes_;
  result_.fragmentation_bytes = reserved_bytes - live_bytes_;
  result_.peak_op = running_op_;
}

// What blocks take of a budget that nothing else uses: their bytes, and what the allocator rounds up.
int64_t SwapExecutor::taken_alone(const std::set<int32_t>& storages) const {
  constexpr uint64_t kWithoutEnd = uint64_t{1} << 61;
  const auto allocator =
      make_allocator(static_cast<AllocatorModel>(options_.allocator), kWithoutEnd, options_.chunk_bytes);
  for (const int32_t each : storages)
    if (trace_.bytes(each) > 0) allocator->allocate(static_cast<uint64_t>(trace_.bytes(each)));
  return static_cast<int64_t>(allocator->reserved_bytes());
}

void SwapExecutor::no_room(int32_t storage) {
  const int64_t bytes = trace_.bytes(storage);
  result_.failed_op = op_;
  const std::set<int32_t> working_set = trace_.working_set(op_);
  result_.working_set_bytes = 0;
  for (const int32_t each : working_set) result_.working_set_bytes += trace_.bytes(each);
  result_.budget_needed_bytes = taken_alone(working_set);
  if (!victims_.any() || op_ < 0)
    result_.budget_needed_bytes = std::max(result_.budget_needed_bytes, live_bytes_ + taken_alone({storage}));
  throw Error(UM_OUT_OF_DEVICE_MEMORY,
              "op " + std::to_string(op_) + ": no room for storage " + std::to_string(storage) + " of " +
                  std::to_string(bytes) + " bytes, and nothing will leave. " + std::to_string(live_bytes_) +
                  " bytes are live and " + std::to_string(allocator_->reserved_bytes()) + " of " +
                  std::to_string(options_.budget_bytes) + " are taken; the op's working set is " +
                  std::to_string(result_.working_set_bytes) + " bytes, and a budget of at least " +
                  std::to_string(result_.budget_needed_bytes) + " would be needed here");
}

}  // namespace um::simulator
