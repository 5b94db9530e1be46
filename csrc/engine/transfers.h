// Moves one allocation between the device and the host: the copies, and the waits of its users meanwhile.
//
// A swap-in takes device memory, re-points the owner to it, and copies; the op that needs the allocation waits for the
// copy in its stream. A swap-out copies to the host, and the allocation remains readable on the device. Its device
// memory is *handed on* only when it is needed: then the owner is re-pointed to the host copy, and the next user of the
// memory waits, in its stream, for the copy to the host.
//
// Invariants:
// - A pinned allocation is not evicted. An op's operands are pinned from before its kernels are launched until the op
//   ends. Work that the kernels still do afterwards is awaited, in streams, by the next user of the memory.
// - An allocation with a source (MoveState) has a host copy with the same contents, at the latest when `moved` passes.
//   An op that writes waits, in its stream, for a copy to the host that still runs. Then the host copy is dropped.
// - `leaving_` has exactly the allocations in the state `leaving`, in the order of leave().
//
// Example: a storage of 4 MiB in two chunks was written, and leave() begins a copy to the host of 0.4 ms. If an op
// reads the storage after 0.1 ms, cancel_eviction() cancels the departure: the storage keeps its chunks, and the copy
// is still valid. If another storage needs two chunks instead, hand_on_first() points this storage to its host copy,
// and the other one's stream waits for the remaining 0.3 ms.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <cstdint>
#include <deque>

#include "engine/movable.h"
#include "engine/move_waits.h"
#include "engine/swap_events.h"
#include "engine/use_order.h"

namespace um {

class Transfers {
 public:
  // Throws um::Error.
  Transfers(const Backend& backend, MovableMemory& memory, Fences& fences, SwapEvents& events, Owners& owners,
            UseOrder& order, MoveWaits& waits);
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Notes the storage that shows the allocation's address, unless one is known: from now on the allocation may be
  // evicted.
  void meet(Movable* block, void* storage);

  // ---- moves ----
  // Begins the swap-in of an allocation, whose users wait for `moved`. Returns false if there is not enough device
  // memory. The result is true, and the allocation remains on the host for good, if its owner does not show its address
  // any more. Throws um::Error if the copy cannot begin; the owner is then re-pointed back, and the state is the one
  // before.
  [[nodiscard]] bool arrive(Movable* block);
  // Begins the eviction of an allocation, without waiting: the copy to the host runs in a stream of its own, after the
  // last user. The allocation remains readable on the device until hand_on_first(). On a GPU a part of a shared chunk
  // is handed on before this returns, and its owner then shows the host copy. If the host has no memory, this drops
  // the host copies of all allocations that are on the device and not being evicted: their next evictions copy again.
  // Throws um::Error if that does not help, and then the allocation is resident as before.
  void leave(Movable* block, um_swap_cause cause);
  // Cancels an eviction, because the allocation is needed after all.
  void cancel_eviction(Movable* block) noexcept;
  // Gives back all places of an allocation, without waiting.
  void free(Movable* block) noexcept;
  // Returns whether the device memory of any allocation can be handed on.
  bool any_leave() const { return !leaving_.empty(); }
  template <class Each>
  void each_leaving(const Each& each) const {
    for (const Movable* block : leaving_) each(*block);
  }
  // Hands on the device memory of the allocation whose eviction began first. `at_once`: only if the CPU need not wait
  // for that. Returns false if there is none. After true the memory may still be in use: a part frees its chunk with
  // the last part, and an allocation whose owner cannot be re-pointed keeps its memory, loses its owner, and is never
  // evicted again. So callers look at the memory anew. Throws um::Error.
  bool hand_on_first(bool at_once = false);
  // Hands on the memory that the layout has for a storage of so many bytes, if allocations there are being evicted and
  // the CPU need not wait for that. Throws um::Error.
  void clear(uint64_t bytes, int32_t storage);

  // ---- addresses that code outside of ops has (memory/reserved_addresses.h) ----
  // The next swap-in of an allocation is to its reserved address. If the allocation lies in another part of a chunk, it
  // is evicted for that if possible. Throws um::Error.
  void call_back(Movable* block);
  // Moves a pinned allocation on the device to its reserved address, if it has one. `for_life`: the address that it has
  // afterwards is its own for life. Throws um::Error.
  void hand_out(Movable* block, bool for_life);
  // Does the same, but returns false if the allocation does not lie at the reserved address then. Throws um::Error.
  [[nodiscard]] bool to_reserved(Movable* block);
  // Returns an address to be compared with others, which the allocation has for life, wherever it lies. Throws
  // um::Error.
  [[nodiscard]] uint64_t reserve(Movable* block) { return memory_.reserve(block->block, &block->residence); }

  // ---- uses ----
  // Notes that an op in the stream of this bit (UsedStreams) uses it on the device: it is evicted after all that were
  // used before.
  void note_use(Movable* block, uint64_t stream_bit) noexcept {
    fences_.replace(&block->used);
    block->streams |= stream_bit;
    order_.use(block);
  }
  // Makes the further work of the stream wait until a pinned allocation may be used where it is or will be. Throws
  // um::Error.
  void await(const Movable::Use& use, driver::CUstream stream, uint64_t stream_bit);
  // Waits on the host until all of a pinned allocation is on the device. Throws um::Error.
  void stand_by(Movable* block);
  // Notes that work of this stream may use it until it is freed or evicted. Throws um::Error.
  void lend(driver::CUstream stream, Movable* block);
  // Permits an access that no op announced, on a device that catches these (the emulated device). Throws um::Error.
  void serve(Movable* block, bool write);

 private:
  [[nodiscard]] Fences::Fence begin_copy(const Movable& block, bool to_host, Fences::Fence before, Wait name);
  void disown(Movable* block) noexcept;
  void has_come(Movable* block) noexcept;
  void reveal(Movable* block);
  void hand_on(Movable* block);
  bool ready(const Movable& block);
  void take_copy(Movable* block);
  void drop_copy(Movable* block) noexcept;

  const Backend& backend_;
  MovableMemory& memory_;
  Fences& fences_;
  SwapEvents& events_;
  Owners& owners_;
  UseOrder& order_;
  MoveWaits& waits_;
  driver::CUstream to_device_{}, to_host_{};
  std::deque<Movable*> leaving_;  // in the order of leave()
};

}  // namespace um
