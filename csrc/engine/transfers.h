// How one allocation comes onto the device and leaves it: the copies, and who may use it meanwhile.
//
// What an op uses is pinned on the device from before its kernel is launched until the op ends; what its kernel still
// does after that is waited for, in streams, by whoever gets the memory. What leaves stays where it is, readable, until
// somebody takes its memory; only then does it lie on the host, and its owner is told. Not thread-safe: the device's
// lock is held, and its context is current.
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

  // Asks who shows the allocation's address as that of a storage, unless that is known: from now on it may leave.
  void meet(Movable* block, void* storage);

  // ---- moves ----
  // Begins the copy from the host to the device. False: there is not enough device memory. It stays on the host when
  // its address is not shown any more. Throws um::Error.
  [[nodiscard]] bool arrive(Movable* block);
  // Begins the way to the host, once the last user has ended. Throws um::Error when the host has no room.
  void leave(Movable* block, um_swap_cause cause);
  // Calls off a way to the host: the allocation is needed after all.
  void stay(Movable* block) noexcept;
  // Gives back all of its places; nothing is waited for.
  void free(Movable* block) noexcept;
  // Whether anything is on its way to the host.
  bool any_leave() const { return !leaving_.empty(); }
  template <class Each>
  void each_leaving(const Each& each) const {
    for (const Movable* block : leaving_) each(*block);
  }
  // What began to leave first gives up its memory on the device; `at_once`: only where nobody has to wait for that.
  // False: there is none. Throws um::Error.
  bool hand_on_first(bool at_once = false);
  // What leaves from where a storage of so many bytes is to come gives up its memory, where nobody has to wait for
  // that, whoever began to leave before. Throws um::Error.
  void clear(uint64_t bytes, int32_t storage);

  // ---- addresses that code outside of ops has (memory/reserved_addresses.h) ----
  // The next arrival of an allocation is under its reserved address. What lies in another part of a chunk is evicted
  // for that, if it may be. Throws um::Error.
  void call_back(Movable* block);
  // A pinned allocation on the device lies at its reserved address from now on, if it has one. `for_life`: the address
  // that it has when this returns is its own for life. Throws um::Error.
  void hand_out(Movable* block, bool for_life);
  // The same, but false if it does not lie at the reserved address. Throws um::Error.
  bool to_reserved(Movable* block);
  // An address to be compared with others, which the allocation has for life, wherever it lies. Throws um::Error.
  uint64_t reserve(Movable* block) { return memory_.reserve(block->block, &block->residence); }

  // ---- uses ----
  // An op in the stream of this bit (UsedStreams) uses it on the device: it leaves after all that were used before.
  void note_use(Movable* block, uint64_t stream_bit) noexcept {
    fences_.replace(&block->used);
    block->streams |= stream_bit;
    order_.use(block);
  }
  // What the stream is given next uses a pinned allocation, where it is or will be. Throws um::Error.
  void await(const Movable::Use& use, driver::CUstream stream, uint64_t stream_bit);
  // The host waits until all of a pinned allocation is on the device. Throws um::Error.
  void stand_by(Movable* block);
  // It is used in this stream too, by whatever that is given until it is freed or leaves. Throws um::Error.
  void lend(driver::CUstream stream, Movable* block);
  // Makes an access possible that no op announced and that is not allowed where the allocation lies on the device,
  // where such accesses are caught (the emulated device). Throws um::Error.
  void serve(Movable* block, bool write);

 private:
  Fences::Fence begin_copy(const Movable& block, bool to_host, Fences::Fence before, Wait name);
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
  std::deque<Movable*> leaving_;  // in the order in which they began to
};

}  // namespace um
