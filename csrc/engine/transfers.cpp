#include "engine/transfers.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"

namespace um {

using driver::CUstream;

Transfers::Transfers(const Backend& backend, MovableMemory& memory, Fences& fences, SwapEvents& events, Owners& owners,
                     UseOrder& order, MoveWaits& waits)
    : backend_(backend),
      memory_(memory),
      fences_(fences),
      events_(events),
      owners_(owners),
      order_(order),
      waits_(waits) {
  const auto make = [&](CUstream* stream) {
    backend_.check(backend_.call().stream_create(stream, driver::CU_STREAM_NON_BLOCKING), "making a copy stream");
  };
  make(&to_device_);
  const OnError undo([&] { static_cast<void>(backend_.call().stream_destroy(to_device_)); });
  make(&to_host_);
}

Transfers::~Transfers() {
  static_cast<void>(backend_.call().stream_destroy(to_device_));
  static_cast<void>(backend_.call().stream_destroy(to_host_));
}

void Transfers::meet(Movable* block, void* storage) {
  if (block->residence.range == nullptr && block->streams != 0) return;  // ops used it on the host, and still may
  if (block->owner == nullptr && storage != nullptr) block->owner = owners_.remember(storage, block->block->address);
}

void Transfers::disown(Movable* block) noexcept {
  if (block->owner != nullptr) owners_.forget(block->owner);
  block->owner = nullptr;
}

// Begins a copy between the places of an allocation, after `before`, and returns its fence. If the driver fails, no
// part of the copy runs afterwards.
Fences::Fence Transfers::begin_copy(const Movable& block, bool to_host, Fences::Fence before, Wait name) {
  const CUstream stream = to_host ? to_host_ : to_device_;
  const uint64_t device = block.block->address, bytes = block.block->record.bytes;
  void* const host = reinterpret_cast<void*>(block.residence.copy->address);
  fences_.order(stream, before, name);
  const OnError undo([&] {
    if (!left_out(Wait::copy_failed)) static_cast<void>(backend_.call().stream_synchronize(stream));
  });
  backend_.check(to_host ? backend_.call().memcpy_dtoh_async(host, device, bytes, stream)
                         : backend_.call().memcpy_htod_async(device, host, bytes, stream),
                 to_host ? "copying to the host" : "copying to the device");
  return fences_.record(&stream, 1);
}

// ---- arrivals ------------------------------------------------------------------------------------------------

// The copy waits for the last user of the memory, and for a copy to the host that still writes the bytes that it reads.
bool Transfers::arrive(Movable* block) {
  Block* const tensor = block->block;
  const uint64_t from = tensor->address, bytes = tensor->record.bytes;
  clear(bytes, tensor->record.storage);
  if (!memory_.to_device(tensor, &block->residence, to_device_)) return false;
  const uint64_t to = tensor->address;
  if (!owners_.repoint(block->owner, from, to)) {
    memory_.to_host(tensor, &block->residence, 0);
    disown(block);
    block->state.change(Change::remain_out);
    return true;
  }
  const OnError undo([&] {
    if (!owners_.repoint(block->owner, to, from)) disown(block);
    memory_.to_host(tensor, &block->residence, 0);
  });
  memory_.show(block->residence, RawAccess::none);  // it is incomplete until the copy has ended
  const Fences::Fence departed = block->state.copying_out() ? block->moved : 0;
  fences_.replace(&block->moved, begin_copy(*block, false, departed, Wait::arrival_after_departure));
  memory_.layout.arrives(block->residence.range, bytes);
  block->cause = block->state.is(Where::queued) ? UM_SWAP_PLANNED : UM_SWAP_ON_DEMAND;
  events_.tell(UM_EVENT_SWAP_IN, block->cause, *tensor, bytes, backend_.now_ns());
  events_.placed(*tensor, true);
  block->state.change(Change::arrive);
  order_.use(block);
  UM_ASSERT(block->check());
  return true;
}

// ---- departures ----------------------------------------------------------------------------------------------

void Transfers::leave(Movable* block, um_swap_cause cause) {
  const bool copies = !block->state.has_source();
  if (block->residence.copy == nullptr) take_copy(block);
  leaving_.push_back(block);
  const OnError undo([&] { leaving_.pop_back(); });
  // Access is restricted before the copy: from now on an unannounced write must be noticed. An allocation that has not
  // arrived is hidden already.
  if (block->state.is(Where::device)) memory_.show(block->residence, RawAccess::read);
  Fences::Fence last = waits_.last_use(*block, Wait::departure_of_arrival, Wait::departure_after_cancelled);
  const uint64_t bytes = copies ? block->block->record.bytes : 0;
  if (copies) {
    const HeldFence used(fences_, last);
    last = begin_copy(*block, true, used, Wait::departure_after_use);
  }
  memory_.leaves(block->residence.range, bytes);
  fences_.replace(&block->moved, last);
  block->cause = cause;
  events_.tell(UM_EVENT_SWAP_OUT, cause, *block->block, bytes, backend_.now_ns());
  order_.remove(block);
  block->state.change(Change::leave);
  UM_ASSERT(block->check());
  // The time for which a part of a shared chunk is taken must follow from the step alone, so that the next step finds
  // the same parts free.
  if (block->residence.range->shared != nullptr && !backend_.hooks->in_host) hand_on(block);
}

// The host copy is valid until the allocation is written, once the copy is complete.
void Transfers::cancel_eviction(Movable* block) noexcept {
  leaving_.erase(std::find(leaving_.begin(), leaving_.end(), block));
  memory_.cancel_departure(block->residence.range);
  ++events_.counted.cancelled;
  block->state.change(Change::cancel_eviction);
  order_.use(block);
  UM_ASSERT(block->check());
}

bool Transfers::hand_on_first(bool at_once) {
  if (leaving_.empty() || (at_once && !ready(*leaving_.front()))) return false;
  hand_on(leaving_.front());
  return true;
}

void Transfers::clear(uint64_t bytes, int32_t storage) {
  for (const ChunkRange* holder : memory_.in_the_way(bytes, storage)) {
    std::vector<Movable*> found;
    for (Movable* each : leaving_) {
      const ChunkRange* const its = each->residence.range;
      const bool part = its->shared != nullptr && its->shared->whole == holder && its->shared->all_left();
      if (its == holder || part) found.push_back(each);
    }
    const auto is_ready = [&](const Movable* each) { return ready(*each); };
    if (!std::all_of(found.begin(), found.end(), is_ready)) continue;
    for (Movable* each : found) hand_on(each);
  }
}

// Returns whether the memory can be handed on without a wait of the CPU, on devices whose CPU would have to wait.
bool Transfers::ready(const Movable& block) {
  return !backend_.hooks->in_host || fences_.passed(block.moved, Wait::departure_ended);
}

// Hands on the device memory: its next user waits, in its stream, for the work that still uses it. If the owner cannot
// be re-pointed, the eviction is cancelled instead.
void Transfers::hand_on(Movable* block) {
  const bool catches = backend_.hooks->in_host;  // the CPU may use the host copy as soon as the owner is re-pointed
  if (catches) waits_.stand(*block, UM_EVENT_WAIT_ROOM, Wait::departure_ended);
  // Kernels that no op announced may still use an address that code outside of ops has, and it is unmapped now.
  if (MovableMemory::at_reserved(block->residence))
    backend_.finish_kernels(Wait::address_unmapped, "waiting for what uses an address of a tensor that is evicted");
  if (!owners_.repoint(block->owner, block->block->address, block->residence.copy->address)) {
    disown(block);
    return cancel_eviction(block);
  }
  leaving_.erase(std::find(leaving_.begin(), leaving_.end(), block));
  events_.placed(*block->block, false);
  memory_.to_host(block->block, &block->residence, left_out(Wait::departure_ended) ? 0 : block->moved);
  block->state.change(Change::hand_on);
  block->streams = 0;
  fences_.replace(&block->used);
  if (catches) {
    block->state.change(Change::copied_out);
    fences_.replace(&block->moved);
  }
  UM_ASSERT(block->check());
}

void Transfers::free(Movable* block) noexcept {
  const HeldFence last(fences_, waits_.freed_after(*block));
  if (block->state.is(Where::leaving)) leaving_.erase(std::find(leaving_.begin(), leaving_.end(), block));
  order_.remove(block);
  disown(block);
  if (block->residence.range != nullptr) events_.placed(*block->block, false);
  memory_.free(block->block, &block->residence, last);
  fences_.replace(&block->moved);
  fences_.replace(&block->used);
}

// ---- addresses that code outside of ops has -------------------------------------------------------------------

void Transfers::call_back(Movable* block) {
  ReservedAddress* const reserved = block->residence.reserved;
  if (reserved == nullptr || reserved->mapped()) return;
  reserved->returns = true;
  if (block->residence.range == nullptr || MovableMemory::fits_reserved(*block->block, block->residence)) return;
  if (block->may_leave()) leave(block, UM_SWAP_FOR_ROOM);
  if (block->state.is(Where::leaving)) hand_on(block);
}

bool Transfers::to_reserved(Movable* block) {
  Block* const tensor = block->block;
  const uint64_t from = tensor->address;
  if (block->residence.range == nullptr || block->owner == nullptr) return false;
  if (block->residence.reserved->mapped()) return true;
  events_.placed(*tensor, false);
  const OnError undo([&] { events_.placed(*tensor, true); });
  bool there = memory_.to_reserved(tensor, &block->residence);
  if (there && !owners_.repoint(block->owner, from, tensor->address)) {
    memory_.from_reserved(tensor, &block->residence);
    disown(block);
    there = false;
  }
  events_.placed(*tensor, true);
  return there;
}

// An allocation that cannot lie at its reserved address gets another one for life, because code may access that.
void Transfers::hand_out(Movable* block, bool for_life) {
  Residence& residence = block->residence;
  if (residence.range == nullptr) return;
  const bool there = residence.reserved != nullptr && to_reserved(block);
  if (!for_life) return;
  if (there) {
    residence.reserved->returns = true;
    return;
  }
  if (residence.reserved != nullptr) memory_.reserved.release(std::exchange(residence.reserved, nullptr), 0);
  residence.range->handed_out = true;
}

// ---- uses ----------------------------------------------------------------------------------------------------

void Transfers::await(const Movable::Use& use, CUstream stream, uint64_t stream_bit) {
  Movable* const block = use.block;
  if (block->residence.range == nullptr) {  // the device uses pinned memory where it is, slowly
    if (block->state.copying_out()) waits_.stall(*block, stream, Wait::op_after_departure);
    block->streams |= stream_bit;
    UM_ASSERT(block->check());
    return;
  }
  if (block->state.is(Where::arriving)) {
    waits_.stall(*block, stream, Wait::op_after_arrival);
    if (fences_.passed(block->moved, Wait::arrival_settled)) has_come(block);
  }
  note_use(block, stream_bit);
  if (use.write) {
    if (block->state.copying_out()) {  // the host copy would have half-written contents
      waits_.stall(*block, stream, Wait::write_after_departure);
      block->state.change(Change::copied_out);
    }
    drop_copy(block);
  }
  reveal(block);
}

void Transfers::has_come(Movable* block) noexcept {
  block->state.change(Change::arrived);
  fences_.replace(&block->moved);
  UM_ASSERT(block->check());
}

void Transfers::stand_by(Movable* block) {
  if (waits_.on_host(block, false) || !block->state.is(Where::arriving)) return;
  waits_.stand(*block, UM_EVENT_WAIT_COPY, Wait::export_after_arrival);
  has_come(block);
  reveal(block);
}

void Transfers::lend(CUstream stream, Movable* block) {
  const uint64_t bit = waits_.streams.lend(stream);
  if (block->state.is(Where::leaving)) cancel_eviction(block);
  block->streams |= bit;
  fences_.replace(&block->used);
}

void Transfers::serve(Movable* block, bool write) {
  if (block->residence.range == nullptr) return;  // on the host all accesses are allowed
  if (write && block->state.is(Where::leaving)) cancel_eviction(block);
  const bool arrives = block->state.is(Where::arriving);
  // An allocation that is being evicted can be read, unless it has not even arrived.
  if (arrives || block->state.is(Where::leaving)) waits_.stand(*block, UM_EVENT_WAIT_COPY, Wait::stray_access);
  if (arrives) has_come(block);
  if (write) {
    if (block->state.copying_out()) waits_.stand(*block, UM_EVENT_WAIT_COPY, Wait::stray_write);
    block->state.change(Change::copied_out);
    drop_copy(block);
  }
  reveal(block);
}

// Hides an allocation until its swap-in has ended. One with a host copy may only be read: a write must be noticed, or
// an eviction would lose it.
void Transfers::reveal(Movable* block) {
  memory_.show(block->residence, block->state.is(Where::arriving) ? RawAccess::none
                                 : block->state.has_source()      ? RawAccess::read
                                                                  : RawAccess::write);
  UM_ASSERT(block->check());
}

// ---- copies on the host --------------------------------------------------------------------------------------

// If the host's memory is used up, host copies of allocations that remain on the device are dropped.
void Transfers::take_copy(Movable* block) {
  if (memory_.add_copy(*block->block, &block->residence, to_host_)) return;
  bool any = false;
  for (Movable* each = order_.oldest(); each != nullptr; each = each->newer) {
    if (each->residence.copy == nullptr) continue;
    drop_copy(each);
    any = true;
  }
  if (any && memory_.add_copy(*block->block, &block->residence, to_host_)) return;
  throw Error(UM_OUT_OF_HOST_MEMORY,
              "the host memory for what is swapped out is used up: " + in_words(memory_.copies.in_use.now) +
                  " are taken and " + in_words(block->block->record.bytes) +
                  " more are to leave the device; allow more, or make the model smaller");
}

// The next user of the host memory waits for work that still reads or writes it.
void Transfers::drop_copy(Movable* block) noexcept {
  block->state.change(Change::end_source);
  memory_.drop_copy(&block->residence, left_out(Wait::host_copy_dropped) ? 0 : block->moved);
}

}  // namespace um
