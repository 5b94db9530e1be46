// Arrivals, departures and the room they make; see mover.h.
#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/mover.h"
#include "memory/host_memory.h"

namespace um {

using driver::CUstream;

// The fence of a copy that is given to the stream now, after `before`. When the driver fails, nothing of it runs.
template <class Copy>
Fences::Fence Mover::begin_copy(CUstream stream, Fences::Fence before, Wait name, const Copy& copy) {
  fences_.order(stream, before, name);
  const OnError undo([&] {
    if (!left_out(Wait::copy_failed)) static_cast<void>(backend_.call().stream_synchronize(stream));
  });
  copy();
  return fences_.record(&stream, 1);
}

// ---- arrivals ------------------------------------------------------------------------------------------------

// On the device, or on its way. False: there is no room, and nothing more will leave.
bool Mover::bring(Movable* block, CUstream stream) {
  if (block->where == Where::leaving) {
    stay(block);
    return true;
  }
  if (block->owner == nullptr) return true;  // nobody could be told where it is: it stays on the host
  const bool planned = block->where == Where::queued;
  do {
    if (!make_room(chunks_of(*block))) return false;
  } while (!begin_arrival(block, stream));
  if (planned) queue_.erase(std::find(queue_.begin(), queue_.end(), block));
  if (!planned && block->where == Where::arriving) ++counted.on_demand_swap_ins;
  return true;
}

// The copy waits for whoever had the memory, and for a copy to the host that still writes what it reads. False: there
// is no room. It stays on the host when it is not shown any more where it was.
bool Mover::begin_arrival(Movable* block, CUstream stream) {
  Block* const tensor = block->block;
  clear(chunks_of(*block), tensor->record.storage);
  const uint64_t from = tensor->address, bytes = tensor->record.bytes;
  if (!memory_.to_device(tensor, &block->residence, block->written ? to_device_ : stream)) return false;
  const uint64_t to = tensor->address;
  if (!owners_.repoint(block->owner, from, to)) {
    memory_.to_host(tensor, &block->residence, 0);
    disown(block);
    block->where = Where::host;
    return true;
  }
  const OnError undo([&] {
    if (!owners_.repoint(block->owner, to, from)) disown(block);
    memory_.to_host(tensor, &block->residence, 0);
  });
  if (block->written) {
    memory_.ranges.show(block->residence.range, RawAccess::none);  // it is not whole before the copy has ended
    const Fences::Fence copied =
        begin_copy(to_device_, block->copying_out ? block->moved : 0, Wait::arrival_after_departure, [&] {
          backend_.check(backend_.call().memcpy_htod_async(to, reinterpret_cast<void*>(from), bytes, to_device_),
                         "copying to the device");
        });
    memory_.layout.arrives(block->residence.range, bytes);
    forget(&block->moved);
    block->moved = copied;
    block->cause = block->where == Where::queued ? UM_SWAP_PLANNED : UM_SWAP_ON_DEMAND;
    ++counted.swap_ins;
    counted.swap_in_bytes += static_cast<int64_t>(bytes);
    events_.tell(UM_EVENT_SWAP_IN, block->cause, *tensor, bytes, backend_.now_ns());
  }
  events_.placed(*tensor, true);
  block->where = block->written ? Where::arriving : Where::device;
  block->copied = block->written;
  block->copying_out = false;
  if (!block->written) drop_copy(block);
  link_newest(block);
  return true;
}

// A pinned allocation that is on the device or on its way is what the stream's next op needs.
void Mover::await(const Use& use, CUstream stream, uint64_t bit) {
  Movable* const block = use.block;
  if (block->residence.range == nullptr) return await_on_host(block, stream, bit);
  if (block->where == Where::arriving) {
    stall(*block, stream, Wait::op_after_arrival);
    if (fences_.passed(block->moved, Wait::arrival_settled)) {
      block->where = Where::device;
      forget(&block->moved);
    }
  }
  note_use(block, bit, use.write);
  if (use.write) {
    if (block->copying_out) {  // the host's copy would be of half-written contents
      stall(*block, stream, Wait::write_after_departure);
      block->copying_out = false;
    }
    drop_copy(block);
  }
  reveal(block);
}

// The device uses page-locked memory where it is, slowly.
void Mover::await_on_host(Movable* block, CUstream stream, uint64_t bit) {
  if (block->copying_out) stall(*block, stream, Wait::op_after_departure);
  block->streams |= bit;
}

// What arrives is not whole before its copy has ended. What the host has unchanged may be read only: a write to it must
// be heard of, or it would leave without what was written.
void Mover::reveal(Movable* block) {
  memory_.ranges.show(block->residence.range, block->where == Where::arriving ? RawAccess::none
                                              : block->copied                 ? RawAccess::read
                                                                              : RawAccess::write);
}

void Mover::serve(Movable* block, bool write) {
  if (block->residence.range == nullptr) return;  // where it lies on the host anybody may do anything
  if (write && block->where == Where::leaving) stay(block);
  const bool arrives = block->where == Where::arriving;
  // What leaves can be read, unless it has not even come.
  if (arrives || block->where == Where::leaving) stand(*block, &counted.wait_copy_ns, Wait::stray_access);
  if (arrives) {
    block->where = Where::device;
    forget(&block->moved);
  }
  if (write) {
    if (block->copying_out) stand(*block, &counted.wait_copy_ns, Wait::stray_write);
    block->copying_out = false;
    block->where = Where::device;
    drop_copy(block);
  }
  reveal(block);
}

// What still reads or writes it is waited for by who gets the memory.
void Mover::drop_copy(Movable* block) noexcept {
  block->copied = false;
  memory_.drop_copy(&block->residence, left_out(Wait::host_copy_dropped) ? 0 : block->moved);
}

// ---- stalls --------------------------------------------------------------------------------------------------

// For the move of the allocation that runs.
void Mover::stall(const Movable& block, CUstream stream, Wait name) {
  if (!catches_) return fences_.order(stream, block.moved, name);  // who stands still is the device, later
  if (fences_.passed(block.moved, name)) return;
  const int64_t start_ns = backend_.now_ns();
  fences_.order(stream, block.moved, name);
  count_wait(block, start_ns, &counted.wait_copy_ns);
}

void Mover::stand(const Movable& block, int64_t* account, Wait name) {
  if (block.moved == 0 || fences_.passed(block.moved, name)) return;
  const int64_t start_ns = backend_.now_ns();
  fences_.wait(block.moved, name);
  count_wait(block, start_ns, account);
}

void Mover::count_wait(const Movable& block, int64_t start_ns, int64_t* account) {
  const int64_t waited_ns = backend_.now_ns() - start_ns;
  *account += waited_ns;
  const bool for_room = account == &counted.wait_room_ns;
  events_.tell(for_room ? UM_EVENT_WAIT_ROOM : UM_EVENT_WAIT_COPY, block.cause, *block.block, 0, start_ns, waited_ns);
}

// ---- departures ----------------------------------------------------------------------------------------------

bool Mover::may_leave(const Movable& block) const {
  const bool there = block.where == Where::device || block.where == Where::arriving;
  return there && block.pins == 0 && block.owner != nullptr && !block.in_reach;
}

void Mover::leave(Movable* block, um_swap_cause cause) {
  const bool copies = block->written && !block->copied;
  if (block->residence.copy == nullptr) take_copy(block);
  leaving_.push_back(block);
  const OnError undo([&] { leaving_.pop_back(); });
  // Before the copy: a write that no op announced must be heard of from now on. What has not come is shown to nobody.
  if (block->where == Where::device) memory_.ranges.show(block->residence.range, RawAccess::read);
  Fences::Fence last = last_use(*block, Wait::departure_of_arrival, Wait::departure_after_cancelled);
  const uint64_t bytes = copies ? block->block->record.bytes : 0;
  if (copies) {
    const Fences::Fence used = last;
    const OnError let_go([&] { fences_.release(used); });
    last = begin_copy(to_host_, used, Wait::departure_after_use, [&] {
      backend_.check(backend_.call().memcpy_dtoh_async(reinterpret_cast<void*>(block->residence.copy->address),
                                                       block->block->address, bytes, to_host_),
                     "copying to the host");
    });
    fences_.release(used);
    ++counted.swap_outs;
    counted.swap_out_bytes += static_cast<int64_t>(bytes);
    block->copying_out = true;
  } else {
    ++counted.clean_drops;
  }
  memory_.layout.leaves(block->residence.range, bytes);
  forget(&block->moved);
  block->moved = last;
  block->copied = true;
  block->cause = cause;
  events_.tell(UM_EVENT_SWAP_OUT, cause, *block->block, bytes, backend_.now_ns());
  unlink(block);
  keep(block);
  block->where = Where::leaving;
}

// It is needed after all. Until something writes to it the host's copy is good, once it is whole.
void Mover::stay(Movable* block) noexcept {
  leaving_.erase(std::find(leaving_.begin(), leaving_.end(), block));
  memory_.layout.stays(block->residence.range);
  ++counted.cancelled;
  // Without a copy to the host `moved` is its last use, which may be the copy to the device.
  block->where = block->copying_out ? Where::device : Where::arriving;
  link_newest(block);
}

// Its memory is somebody else's now, who waits in his stream for what still uses it. False: it cannot move.
bool Mover::hand_on(Movable* block) {
  // The CPU may use the copy as soon as it is told of it.
  if (catches_) stand(*block, &counted.wait_room_ns, Wait::departure_ended);
  if (!owners_.repoint(block->owner, block->block->address, block->residence.copy->address)) {
    disown(block);
    stay(block);
    return false;
  }
  leaving_.erase(std::find(leaving_.begin(), leaving_.end(), block));
  events_.placed(*block->block, false);
  memory_.to_host(block->block, &block->residence, left_out(Wait::departure_ended) ? 0 : block->moved);
  block->where = Where::host;
  block->copied = false;
  block->streams = 0;
  forget(&block->used);
  if (catches_) {
    block->copying_out = false;
    forget(&block->moved);
  }
  return true;
}

// ---- room ----------------------------------------------------------------------------------------------------

bool Mover::make_room(uint64_t chunks) {
  while (memory_.ranges.obtainable() < chunks) {
    if (!leaving_.empty()) {
      hand_on(leaving_.front());
    } else if (!evict_one() && !last_resort_()) {
      return false;
    }
  }
  return true;
}

bool Mover::let_go_of_reach() noexcept {
  bool any = false;
  for (Movable* each = catches_ ? oldest_ : nullptr; each != nullptr; each = each->newer) {
    any |= each->in_reach && each->owner != nullptr;
    each->in_reach = each->in_reach && each->owner == nullptr;
  }
  return any;
}

void Mover::set_budget(uint64_t chunks) {
  memory_.ranges.set_budget(chunks);
  while (memory_.ranges.taken().now > chunks) {
    if (!leaving_.empty()) {
      hand_on(leaving_.front());
    } else if (!evict_one()) {
      break;
    }
  }
  memory_.ranges.settle();
}

// What leaves from where a storage is to come is handed on before what began to leave earlier.
void Mover::clear(uint64_t chunks, int32_t storage) {
  for (const ChunkRange* range : memory_.layout.in_the_way(chunks, storage)) {
    const auto found = std::find_if(leaving_.begin(), leaving_.end(),
                                    [&](const Movable* each) { return each->residence.range == range; });
    if (found != leaving_.end() && ready(**found)) hand_on(*found);
  }
}

// Whether its memory can be handed on without anybody waiting for it, where the CPU would have to.
bool Mover::ready(const Movable& block) { return !catches_ || fences_.passed(block.moved, Wait::departure_ended); }

void Mover::progress() {
  while (!queue_.empty()) {
    Movable* const next = queue_.front();
    const uint64_t least = chunks_of(*next), needed = least + memory_.layout.spare();
    while (memory_.ranges.obtainable() < needed && !leaving_.empty() && ready(*leaving_.front()))
      hand_on(leaving_.front());
    if (memory_.ranges.obtainable() >= needed && begin_arrival(next, nullptr)) {
      queue_.pop_front();
    } else if (!leaving_.empty() || memory_.ranges.obtainable() >= least || !send_spare()) {
      return;
    }
  }
}

bool Mover::send_spare() {
  for (Movable* each = spares_ > 0 ? oldest_ : nullptr; each != nullptr; each = each->newer) {
    if (!each->spare || !may_leave(*each)) continue;
    leave(each, UM_SWAP_PLANNED);
    return true;
  }
  return false;
}

bool Mover::evict_one() {
  if (send_spare()) return true;
  Movable* const chosen = victim();
  if (chosen == nullptr) return false;
  leave(chosen, UM_SWAP_FOR_ROOM);
  ++counted.evictions;
  return true;
}

Movable* Mover::victim() const {
  Movable* chosen = nullptr;
  int64_t furthest = -1;
  for (Movable* each = oldest_; each != nullptr; each = each->newer) {
    if (!may_leave(*each)) continue;
    if (outlook_ == nullptr) return each;
    const int64_t next_use = outlook_->next_use(*each->block);
    if (next_use <= furthest) continue;
    chosen = each;
    furthest = next_use;
  }
  return chosen;
}

// ---- host memory ---------------------------------------------------------------------------------------------

void Mover::take_copy(Movable* block) {
  if (memory_.add_copy(*block->block, &block->residence, to_host_)) return;
  if (reclaim_copies() && memory_.add_copy(*block->block, &block->residence, to_host_)) return;
  throw Error(UM_OUT_OF_HOST_MEMORY,
              "the host memory for what is swapped out is used up: " + in_words(memory_.copies.in_use.now) +
                  " are taken and " + in_words(block->block->record.bytes) +
                  " more are to leave the device; allow more, or make the model smaller");
}

// Copies of what stays on the device. Whether there were any.
bool Mover::reclaim_copies() noexcept {
  bool any = false;
  for (Movable* each = oldest_; each != nullptr; each = each->newer) {
    if (each->residence.copy == nullptr) continue;
    drop_copy(each);
    any = true;
  }
  return any;
}

}  // namespace um
