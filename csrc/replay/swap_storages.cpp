#include "replay/swap_storages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "base/error.h"

namespace um::simulator {

SwapStorages::SwapStorages(const IndexedTrace& trace, const um_link& link, const um_swap_options& options,
                           um_swap_result& result)
    : clock(link, *this, options, result),
      memory(options, result),
      victims(trace, static_cast<Eviction>(options.eviction)),
      trace_(trace),
      options_(options),
      result_(result),
      states_(static_cast<size_t>(trace.storage_count())),
      refused_after_(std::numeric_limits<uint64_t>::max()) {}

// ---- lives ---------------------------------------------------------------------------------------------------

void SwapStorages::next_iteration() {
  std::vector<int32_t> names(states_.size());
  for (int32_t storage = 0; storage < trace_.storage_count(); ++storage) {
    const int32_t as = trace_.continues_as(storage);
    names[static_cast<size_t>(storage)] = as >= 0 ? as : storage;
    if (as < 0) end_life(storage);
  }
  const std::vector<SwapState> old = states_;
  for (int32_t storage = 0; storage < trace_.storage_count(); ++storage) {
    const int32_t from = trace_.continued_from(storage);
    state(storage) = from >= 0 ? old[static_cast<size_t>(from)] : SwapState{};
    state(storage).birth = state(storage).last_writer = -1;
  }
  clock.link.rename(names);
  victims.next_iteration();
}

void SwapStorages::make(int32_t storage) {
  SwapState& each = state(storage);
  each = SwapState{};
  each.birth = clock.op;
  each.pin = pin_;  // an op that makes something works with it
  take_room(storage);
  each.place = Place::device;
  victims.made(storage, clock.op);
}

void SwapStorages::place_first(int32_t storage, bool on_host) {
  SwapState& each = state(storage);
  each = SwapState{};
  each.written = true;
  victims.made(storage, clock.op);
  const bool at_any_price = clock.iteration() > 1;
  if (!on_host && at_any_price) take_room(storage);
  if (!on_host && !at_any_price && !take_block(storage)) {
    if (!victims.any()) no_room(storage);
    on_host = true;
  }
  each.host_valid = on_host;
  each.place = on_host ? Place::host : Place::device;
}

void SwapStorages::end_life(int32_t storage) {
  SwapState& each = state(storage);
  if (each.place == Place::dead) return;
  if (each.copy_runs) {
    if (each.place != Place::leaving) ++freeing_;
    memory.leave_to(each.copy, each.block, trace_.bytes(storage));
  } else {
    if (each.place == Place::leaving) --freeing_;
    if (each.place == Place::leaving || each.place == Place::device) release(storage);
  }
  each = SwapState{};
}

// ---- uses ----------------------------------------------------------------------------------------------------

void SwapStorages::use(int32_t storage, bool needs_contents) {
  SwapState& each = state(storage);
  switch (each.place) {
    case Place::dead:  // made inside the op
    case Place::device:
      return;
    case Place::leaving:
      return cancel_swap_out(storage);
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
      throw Error(UM_INVALID_ARGUMENT, "op " + std::to_string(clock.op) + " needs storage " + std::to_string(storage) +
                                           ", whose contents the plan has dropped: recompute it before that op");
  }
  take_room(storage);
  be_there(storage);
}

void SwapStorages::wait_for_arrivals() {
  for (const int32_t storage : arrivals_) wait_for_arrival(storage);
  arrivals_.clear();
  clock.pay_for_mapping(memory.newly_mapped());
}

void SwapStorages::copy_for_host(int32_t storage, bool reads, int64_t bytes) {
  pin(storage);
  use(storage, reads || bytes != trace_.bytes(storage));
  wait_for_arrival(storage);
  if (!reads && state(storage).copying_out) wait_for_departure(storage, UM_SPAN_WAIT_COPY);
  host_copy_ = ++copies_;
  clock.link.submit(reads ? kToHost : kToDevice,
                    {bytes, storage, clock.op, clock.iteration(), host_copy_, UM_CAUSE_USER}, true);
  while (host_copy_ != 0) clock.wait_for_link(UM_SPAN_WAIT_COPY, storage);
  if (reads) {
    clock.wait_on_host();
  } else {
    state(storage).write(clock.op);
  }
}

// ---- moves ---------------------------------------------------------------------------------------------------

void SwapStorages::arrive(int32_t storage, bool on_demand) {
  SwapState& each = state(storage);
  each.place = Place::arriving;
  each.on_demand = on_demand;
  if (on_demand) ++result_.on_demand_swap_ins;
  submit_arrival(storage, on_demand);
}

void SwapStorages::submit_arrival(int32_t storage, bool first) {
  submit(kToDevice, storage, state(storage).on_demand ? UM_CAUSE_COHERENCE : UM_CAUSE_USER, first);
}

void SwapStorages::submit(Direction direction, int32_t storage, um_cause cause, bool first) {
  state(storage).copy = ++copies_;
  clock.link.submit(direction, {trace_.bytes(storage), storage, clock.op, clock.iteration(), copies_, cause}, first);
}

void SwapStorages::leave(int32_t storage, um_cause cause) {
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
  submit(kToHost, storage, cause, false);
}

void SwapStorages::cancel_swap_out(int32_t storage) {
  SwapState& each = state(storage);
  ++result_.cancelled;
  --freeing_;
  each.copying_out = each.copy_runs;
  if (!each.copying_out) each.copy = 0;
  be_there(storage);
}

void SwapStorages::turn_back(int32_t storage) {
  ++result_.cancelled;
  state(storage).copy = 0;
  state(storage).place = Place::host;
}

void SwapStorages::be_there(int32_t storage) {
  state(storage).place = Place::device;
  victims.returned(storage);
}

void SwapStorages::wait_for_arrival(int32_t storage) {
  bool first = false;
  while (state(storage).place == Place::arriving) {
    clock.link.start_waiting();
    if (state(storage).copy_runs || !clock.link.waits(kToDevice)) {
      clock.wait_for_link(UM_SPAN_WAIT_COPY, storage);
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

void SwapStorages::wait_for_departure(int32_t storage, um_span_kind kind) {
  while (state(storage).place == Place::leaving || state(storage).copying_out) clock.wait_for_link(kind, storage);
}

void SwapStorages::retry() {
  if (memory.frees() != refused_after_) clock.link.start_waiting();
}

Begin SwapStorages::begins(Direction direction, const Copy& copy) {
  if (copy.serial == host_copy_) return Begin::started;
  SwapState& each = state(copy.storage);
  const bool gone = each.copy != copy.serial;
  if (gone && !memory.is_left_to(copy.serial)) return Begin::dropped;
  if (direction == kToDevice) {
    if (claimant_ >= 0 && claimant_ != copy.storage) return Begin::waits;
    if (memory.frees() == refused_after_ && refused_ == copy.serial) return Begin::waits;
    if (!take_block(copy.storage)) {
      refused_after_ = memory.frees();
      refused_ = copy.serial;
      return Begin::waits;
    }
  }
  if (!gone) each.copy_runs = true;
  ++(direction == kToDevice ? result_.swap_ins : result_.swap_outs);
  return Begin::started;
}

void SwapStorages::ended(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine) {
  const bool for_host = copy.serial == host_copy_;
  clock.note_copy(direction, copy, start_ns, engine);
  if (direction == kToDevice) (for_host ? result_.host_write_bytes : result_.swap_in_bytes) += copy.bytes;
  if (direction == kToHost) (for_host ? result_.host_read_bytes : result_.swap_out_bytes) += copy.bytes;
  if (for_host) {
    host_copy_ = 0;
    return;
  }
  SwapState& each = state(copy.storage);
  if (each.copy != copy.serial) {
    --freeing_;
    return memory.free_of(copy.serial);
  }
  each.copy = 0;
  each.copy_runs = each.copying_out = false;
  each.host_valid = true;
  if (each.place == Place::arriving) {
    be_there(copy.storage);
  } else if (each.place == Place::leaving) {
    --freeing_;
    release(copy.storage);
    each.place = Place::host;
  }
}

// ---- room ----------------------------------------------------------------------------------------------------

bool SwapStorages::take_block(int32_t storage) { return memory.take(trace_.bytes(storage), &state(storage).block); }

void SwapStorages::take_room(int32_t storage) {
  claimant_ = storage;
  while (!take_block(storage)) make_room(storage);
  claimant_ = -1;
}

void SwapStorages::release(int32_t storage) {
  memory.free(state(storage).block, trace_.bytes(storage));
  state(storage).block = Allocator::kNoRoom;
}

// Brings about that there is more room than before, or fails. May have to be called again.
void SwapStorages::make_room(int32_t storage) {
  if (freeing_ == 0) {
    const int32_t victim = victims.pick([&](int32_t candidate) {
      const SwapState& each = state(candidate);
      if (each.place != Place::device || trace_.bytes(candidate) == 0) return SwapVictims::Candidate::no;
      return each.pin == pin_ ? SwapVictims::Candidate::not_now : SwapVictims::Candidate::yes;
    });
    if (victim >= 0) {
      ++result_.evictions;
      return leave(victim, UM_CAUSE_EVICTION);
    }
    // What is arriving can leave again once it is there.
    const bool nothing_leaves = freeing_ == 0 && !victims.any();
    if (nothing_leaves || clock.link.next_event_ns() == SwapLink::kNever) no_room(storage);
  }
  clock.wait_for_link(UM_SPAN_WAIT_ROOM, storage);
}

void SwapStorages::no_room(int32_t storage) {
  const int64_t bytes = trace_.bytes(storage);
  std::vector<int64_t> working_set;
  for (const int32_t each : trace_.working_set(clock.op)) working_set.push_back(trace_.bytes(each));
  result_.failed_op = clock.op;
  result_.working_set_bytes = std::accumulate(working_set.begin(), working_set.end(), int64_t{0});
  result_.budget_needed_bytes = memory.taken_alone(working_set);
  if (!victims.any() || clock.op < 0)
    result_.budget_needed_bytes =
        std::max(result_.budget_needed_bytes, memory.live_bytes() + memory.taken_alone({bytes}));
  throw Error(UM_OUT_OF_DEVICE_MEMORY,
              "op " + std::to_string(clock.op) + ": no room for storage " + std::to_string(storage) + " of " +
                  std::to_string(bytes) + " bytes, and nothing will leave. " + std::to_string(memory.live_bytes()) +
                  " bytes are live and " + std::to_string(memory.reserved_bytes()) + " of " +
                  std::to_string(options_.budget_bytes) + " are taken; the op's working set is " +
                  std::to_string(result_.working_set_bytes) + " bytes, and a budget of at least " +
                  std::to_string(result_.budget_needed_bytes) + " would be needed here");
}

}  // namespace um::simulator
