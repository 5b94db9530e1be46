// What is otherwise where a plan is carried out as a device does it: see um_swap_options and csrc/engine/swapper.h.
#include <algorithm>

#include "replay/swap_executor.h"

namespace um::simulator {

// It never leaves the device.
bool SwapExecutor::stays(int32_t storage) const {
  const bool small = trace_.bytes(storage) * 2 <= static_cast<int64_t>(options_.chunk_bytes);
  return by_engine_rules() && (small || trace_.columns().storage_role[storage] == UM_ROLE_WORKSPACE);
}

// ---- spares --------------------------------------------------------------------------------------------------

void SwapExecutor::set_spare(int32_t storage) {
  SwapState& each = state(storage);
  if (each.place != Place::device || each.spare) {
    ++result_.redundant_actions;
    return;
  }
  if (each.host_valid || each.copying_out || !each.written) return leave(storage, UM_CAUSE_USER);
  each.spare = true;
  ++spares_;
}

void SwapExecutor::keep(int32_t storage) {
  if (!state(storage).spare) return;
  state(storage).spare = false;
  --spares_;
}

// False when there is none that could leave.
bool SwapExecutor::send_spare() {
  int32_t oldest = -1;
  for (int32_t storage = 0; spares_ > 0 && storage < trace_.storage_count(); ++storage) {
    const SwapState& each = state(storage);
    if (!each.spare || each.pin == pin_) continue;
    if (oldest < 0 || each.used < state(oldest).used) oldest = storage;
  }
  if (oldest < 0) return false;
  leave(oldest, UM_CAUSE_USER);
  return true;
}

// ---- the order of use ----------------------------------------------------------------------------------------

void SwapExecutor::note_use(int32_t storage) {
  state(storage).used = ++uses_;
  keep(storage);
}

// What an op reads comes before what it writes.
void SwapExecutor::note_uses(int32_t op) {
  const um_trace& columns = trace_.columns();
  for (const uint8_t writes : {uint8_t{0}, kWrite}) {
    for (uint64_t row = trace_.first_access(op); row < trace_.first_access(op + 1); ++row) {
      const int32_t storage = columns.access_storage[row];
      if ((columns.access_flags[row] & kWrite) == writes && state(storage).place != Place::dead) note_use(storage);
    }
  }
}

// ---- arrivals ------------------------------------------------------------------------------------------------

int64_t SwapExecutor::chunks_of(int64_t bytes) const {
  const auto chunk_bytes = static_cast<int64_t>(options_.chunk_bytes);
  return (bytes + chunk_bytes - 1) / chunk_bytes;
}

// Whether there will be room when all that leaves has left.
bool SwapExecutor::is_coming(int32_t storage) const {
  const uint64_t free =
      options_.budget_bytes / options_.chunk_bytes - allocator_->reserved_bytes() / options_.chunk_bytes;
  auto chunks = static_cast<int64_t>(free);
  for (int32_t each = 0; each < trace_.storage_count(); ++each) {
    if (states_[static_cast<size_t>(each)].place == Place::leaving) chunks += chunks_of(trace_.bytes(each));
  }
  for (const Orphan& each : orphans_) chunks += chunks_of(each.bytes);
  return chunks >= chunks_of(trace_.bytes(storage));
}

// Whether nothing of what an op is given has to come, or still has a copy that is good until the op writes.
bool SwapExecutor::at_hand(int32_t op) {
  const um_trace& columns = trace_.columns();
  for (uint64_t row = trace_.first_access(op); row < trace_.first_access(op + 1); ++row) {
    const SwapState& each = state(columns.access_storage[row]);
    if (each.place == Place::dead) continue;
    const bool clean = each.host_valid || each.copying_out;
    if (each.place != Place::device || (clean && (columns.access_flags[row] & kWrite) != 0)) return false;
  }
  return true;
}

bool SwapExecutor::waits_for_room(int32_t storage) {
  return by_engine_rules() && state(storage).place == Place::arriving && state(storage).copy == 0;
}

// In the order in which they were asked for, as far as there is room.
void SwapExecutor::begin_arrivals() {
  while (!waiting_.empty()) {
    const int32_t next = waiting_.front();
    if (take_block(next)) {
      waiting_.pop_front();
      note_use(next);
      submit_arrival(next, false);
    } else if (is_coming(next) || !send_spare()) {
      return;
    }
  }
}

// Now, as an op needs it.
void SwapExecutor::bring(int32_t storage) {
  take_block_waiting(storage);
  stop_waiting(storage);
  submit_arrival(storage, false);
}

void SwapExecutor::stop_waiting(int32_t storage) {
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), storage));
}

}  // namespace um::simulator
