// Arrivals, departures and the room they make; see swapper.h.
#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/swapper.h"
#include "memory/host_memory.h"
#include "memory/room.h"

namespace um {

using driver::CUstream;

// The fence of a copy that is given to the stream now, after `before`, which it takes over. When the driver fails,
// nothing of it runs any more.
template <class Copy>
Fences::Fence Swapper::begin_copy(CUstream stream, Fences::Fence before, const Copy& copy) {
  const OnError let_go([&] { fences_.release(before); });
  fences_.order(stream, before, Wait::departure_after_use);
  const OnError undo([&] {
    if (!left_out(Wait::copy_failed)) static_cast<void>(backend_.call().stream_synchronize(stream));
  });
  copy();
  const Fences::Fence copied = fences_.record(&stream, 1);
  fences_.release(before);
  return copied;
}

// ---- arrivals ----------------------------------------------------------------------------------------------

// On the device, or on its way. False: there is no room, and nothing more will leave.
bool Swapper::bring(Swapped* block, CUstream stream) {
  if (block->place == Place::leaving) {
    stay(block);
    return true;
  }
  const bool planned = block->place == Place::queued;
  do {
    if (!make_room(memory_.chunks_of(*block->block))) return false;
  } while (!begin_arrival(block, stream));
  if (planned) queue_.erase(std::find(queue_.begin(), queue_.end(), block));
  if (!planned && block->place == Place::arriving) ++counted.on_demand_swap_ins;
  return true;
}

// The copy waits for nobody but who had its chunks. False, and nothing has happened, when the driver has less memory
// than the budget: then no more is obtainable than it has.
bool Swapper::begin_arrival(Swapped* block, CUstream stream) {
  if (block->on_show) memory_.unmap_host(*block->block);
  block->on_show = false;
  const OnError undo([&] { show_on_host(block); });
  const CUstream first_user = block->written ? to_device_ : stream;
  block->shown = block->written ? Access::none : Access::write;  // what arrives is not whole before the copy has ended
  if (!memory_.back(*block->block, first_user, catches_ ? block->shown : Access::write)) {
    show_on_host(block);
    return false;
  }
  note_level();
  link_newest(block);
  if (!block->written) {
    block->place = Place::device;
    block->written |= catches_;  // by anybody, from now on
    return true;
  }
  {
    const OnError undo_backing([&] {
      unlink(block);
      memory_.strip(*block->block);
    });
    block->moved = begin_copy(to_device_, 0, [&] { memory_.copy_in(*block->block, block->host, to_device_); });
  }
  block->cause = block->place == Place::queued ? UM_SWAP_PLANNED : UM_SWAP_ON_DEMAND;
  block->place = Place::arriving;
  ++counted.swap_ins;
  counted.swap_in_bytes += static_cast<int64_t>(block->block->record.bytes);
  events_.tell(UM_EVENT_SWAP_IN, block->cause, *block->block, block->block->record.bytes);
  return true;
}

void Swapper::settle_arrival(Swapped* block) {
  block->place = Place::device;
  if (block->exported) drop_host(block);  // it may have been written to while nobody looked
  forget(&block->moved);
}

// A pinned block that is on the device or on its way is what the stream's next op needs.
void Swapper::await(const Use& use, CUstream stream, uint64_t bit) {
  Swapped* block = use.block;
  if (block->place == Place::arriving) {
    stall(*block, stream, &counted.wait_copy_ns, Wait::op_after_arrival);
    if (fences_.passed(block->moved, Wait::arrival_settled)) settle_arrival(block);
  }
  note_use(block, bit, use.write);
  if (!use.write) return reveal(block);
  if (block->copying_out) {  // the host's copy would be of half-written contents
    stall(*block, stream, &counted.wait_copy_ns, Wait::write_after_departure);
    block->copying_out = false;
  }
  if (block->host_valid) drop_host(block);
  reveal(block);
}

// ---- accesses that no op announced ---------------------------------------------------------------------------

void Swapper::show(Swapped* block, Access access) {
  if (!catches_ || block->shown == access) return;
  memory_.show(*block->block, access);
  block->shown = access;
}

// On the device, with all of its contents there. What the host has unchanged may be read only: a write to it must be
// heard of, or it would leave without what was written.
void Swapper::reveal(Swapped* block) {
  if (block->place == Place::device)
    show(block, block->host_valid || block->copying_out ? Access::read : Access::write);
}

bool Swapper::serve(Swapped* block, bool write) {
  const bool moving = block->place == Place::leaving || block->place == Place::arriving;
  if (moving) stand(*block, &counted.wait_copy_ns, Wait::stray_access);
  if (block->place == Place::leaving) collect();
  if (block->place == Place::arriving) settle_arrival(block);
  if (block->place != Place::device) return serve_on_host(block);
  if (write) {
    if (block->copying_out) stand(*block, &counted.wait_copy_ns, Wait::stray_write);
    block->copying_out = false;
    if (block->host_valid) drop_host(block);
  }
  reveal(block);
  return true;
}

// Where it is: nothing has to leave for it. It is unmapped again when the block comes onto the device.
bool Swapper::serve_on_host(Swapped* block) {
  if (!host_mapped_) return false;
  if (block->host == nullptr) take_host(block);
  block->written = block->host_valid = true;
  if (!block->on_show) memory_.map_host(*block->block, block->host);
  block->on_show = true;
  ++counted.host_accesses;
  return true;
}

// ---- departures --------------------------------------------------------------------------------------------

bool Swapper::may_leave(const Swapped& block) const {
  const bool known = block.block->record.seen && !block.in_reach;  // else raw accesses may come, which must be caught
  return block.place == Place::device && block.pins == 0 && (known || catches_);
}

void Swapper::leave(Swapped* block, um_swap_cause cause) {
  const bool copies = block->written && !block->host_valid;
  if (copies && block->host == nullptr) take_host(block, &to_host_);
  um::make_room(leaving_, leaving_.size() + 1);
  if (block->copying_out && fences_.passed(block->moved, Wait::departure_cancelled)) block->copying_out = false;
  Fences::Fence last = 0;
  show(block, Access::none);  // else a write could come after its copy
  if (copies) {
    last = begin_copy(to_host_, last_use(block->streams, {}),
                      [&] { memory_.copy_out(*block->block, block->host, to_host_); });
    forget(&block->moved);
    block->moved = last;
    ++counted.swap_outs;
    counted.swap_out_bytes += static_cast<int64_t>(block->block->record.bytes);
  } else {
    std::vector<CUstream> others;
    if (block->copying_out && !left_out(Wait::departure_after_cancelled)) others.push_back(to_host_);
    last = last_use(block->streams, others);
    forget(&block->moved);
    block->moved = last;
    ++counted.clean_drops;
  }
  block->cause = cause;
  events_.tell(UM_EVENT_SWAP_OUT, cause, *block->block, copies ? block->block->record.bytes : 0);
  unlink(block);
  keep(block);
  block->place = Place::leaving;
  block->copying_out |= copies;
  if (block->moved == 0) return end_departure(block);
  leaving_.push_back(block);
}

// It is needed after all. Until something writes to it the host's copy is good, once it is whole.
void Swapper::stay(Swapped* block) {
  leaving_.erase(std::find(leaving_.begin(), leaving_.end(), block));
  ++counted.cancelled;
  block->place = Place::device;
  link_newest(block);
  if (block->copying_out) {
    block->host_valid = !block->exported;
  } else {
    forget(&block->moved);
  }
}

void Swapper::end_departure(Swapped* block) noexcept {
  memory_.strip(*block->block);
  forget(&block->moved);
  block->place = Place::host;
  block->host_valid = block->written;
  block->copying_out = false;
  block->streams = 0;
  show_on_host(block);
}

// Whether anything has ended. What cannot be asked stays in the list, for the next time.
bool Swapper::collect() {
  bool any = false;
  for (size_t i = 0; i < leaving_.size();) {
    if (!fences_.passed(leaving_[i]->moved, Wait::departure_ended)) {
      ++i;
      continue;
    }
    end_departure(leaving_[i]);
    leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(i));
    any = true;
  }
  return any;
}

void Swapper::advance() {
  collect();
  while (!queue_.empty()) {
    Swapped* next = queue_.front();
    const uint64_t needed = memory_.chunks_of(*next->block);
    if (memory_.obtainable() >= needed && begin_arrival(next, nullptr)) {
      queue_.pop_front();
    } else if (coming() >= needed || !send_spare()) {
      return;
    }
  }
}

// ---- room --------------------------------------------------------------------------------------------------

bool Swapper::make_room(uint64_t chunks) {
  while (memory_.obtainable() < chunks) {
    if (collect()) continue;
    if (coming() < chunks && evict_one()) continue;
    if (!wait_for_departure() && !wait_for_arrival() && !end_export_()) return false;
  }
  return true;
}

uint64_t Swapper::departing() const {
  uint64_t chunks = 0;
  for (const Swapped* each : leaving_) chunks += memory_.backed(*each->block);
  return chunks;
}

// Chunks that can be had, or could when all copies have ended.
uint64_t Swapper::coming() const { return memory_.obtainable() + departing(); }

bool Swapper::send_spare() {
  for (Swapped* each = spares_ > 0 ? oldest_ : nullptr; each != nullptr; each = each->newer) {
    if (!each->spare || !may_leave(*each)) continue;
    leave(each);
    return true;
  }
  return false;
}

bool Swapper::evict_one() {
  if (send_spare()) return true;
  Swapped* chosen = victim();
  if (chosen == nullptr) return false;
  leave(chosen, UM_SWAP_FOR_ROOM);
  ++counted.evictions;
  return true;
}

Swapped* Swapper::victim() const {
  Swapped* chosen = nullptr;
  int64_t furthest = -1;
  for (Swapped* each = oldest_; each != nullptr; each = each->newer) {
    if (!may_leave(*each)) continue;
    if (forecast_ == nullptr) return each;
    const int64_t next_use = forecast_->next_use(*each->block);
    if (next_use <= furthest) continue;
    chosen = each;
    furthest = next_use;
  }
  return chosen;
}

bool Swapper::wait_for_departure() {
  if (leaving_.empty()) return false;
  stand(*leaving_.front(), &counted.wait_room_ns, Wait::room_after_departure);
  return true;
}

// What nobody needs yet can leave again, once it is there.
bool Swapper::wait_for_arrival() {
  for (Swapped* each = oldest_; each != nullptr; each = each->newer) {
    if (each->place != Place::arriving || each->pins != 0) continue;
    stand(*each, &counted.wait_room_ns, Wait::room_after_arrival);
    settle_arrival(each);
    return true;
  }
  return false;
}

// ---- host memory -------------------------------------------------------------------------------------------

// At the addresses of a block that is not on the device. Where accesses can be caught that happens at the first one.
void Swapper::show_on_host(Swapped* block) noexcept {
  if (catches_ || !host_mapped_ || block->host == nullptr) return;
  try {
    memory_.map_host(*block->block, block->host);
    block->on_show = true;
  } catch (const std::exception&) {
    return;  // an access outside of ops is fatal then, not slow: whoever moved the block need not fail for that
  }
}

void Swapper::take_host(Swapped* block, const CUstream* user) {
  block->host = memory_.take_host(*block->block, user);
  if (block->host == nullptr && reclaim_host()) block->host = memory_.take_host(*block->block, user);
  if (block->host != nullptr) return;
  throw Error(UM_OUT_OF_HOST_MEMORY, "the host memory for what is swapped out is used up: " +
                                         in_words(memory_.host_in_use().now * memory_.chunk_bytes()) +
                                         " are taken and " + in_words(block->block->record.bytes) +
                                         " more are to leave the device; allow more, or make the model smaller");
}

void Swapper::drop_host(Swapped* block) noexcept {
  block->host_valid = false;
  if (block->host == nullptr) return;
  memory_.give_host(block->host, left_out(Wait::host_copy_dropped) ? 0 : block->moved);
  block->host = nullptr;
}

// Copies of what is on the device as well; those that are still being made are waited for by who gets the memory.
// Whether there were any.
bool Swapper::reclaim_host() {
  bool any = false;
  for (Swapped* each = oldest_; each != nullptr; each = each->newer) {
    if (each->place != Place::device || each->host == nullptr) continue;
    drop_host(each);
    if (each->shown != Access::none) reveal(each);
    any = true;
  }
  return any;
}

}  // namespace um
