// Which allocations move, and when: what ops use and make finds room, and what plans ask for comes and goes.
//
// Nobody makes the host wait. Not thread-safe: the device's lock is held; the device's context is current wherever
// copies may start.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/transfers.h"
#include "memory/stable_pool.h"

namespace um {

class Mover {
 public:
  using Uses = std::vector<Movable::Use>;

  // Every allocation must have been freed when it ends. Throws um::Error.
  Mover(const Backend& backend, MovableMemory& memory, Fences& fences, SwapEvents& events, Owners& owners)
      : waits(backend, fences, events),
        transfers(backend, memory, fences, events, owners, order, waits),
        memory_(memory),
        events_(events) {}

  // An allocation on the device, pinned, whose memory `stream` may use at once. `storage`: what it will be called
  // (Record). `beside`: what the op that asks for it uses as well. Throws um::Error.
  Movable* make(uint64_t bytes, driver::CUstream stream, int32_t storage = -1, const Uses& beside = {});
  // Likewise, of memory that nobody has and nobody has to leave for; nullptr: there is none.
  Movable* make_idle(uint64_t bytes, driver::CUstream stream, int32_t storage = -1);
  // An allocation on the host that comes when it is used first; what the stream is given from now on may use it there,
  // or, without one, the CPU, which waits. nullptr: the host has no room. Throws um::Error.
  Movable* make_out(uint64_t bytes, const driver::CUstream* user = nullptr);
  // Gives back all of its places; nothing is waited for.
  void free(Movable* block) noexcept;

  // True when pinned allocations are on the device and ready for what an op does: then it has been noted that it does.
  bool at_hand(const Uses& uses, driver::CUstream stream);
  // Brings pinned allocations onto the device and orders `stream` after that; one whose owner nobody knows is used
  // where it lies. Throws um::Error when they find no room, or the host none for what must leave: then some of them may
  // have come.
  void acquire(const Uses& uses, driver::CUstream stream);
  // The host waits until all of an allocation's bytes are where it lies. Throws um::Error.
  void settle(Movable* block);
  // Lets allocations leave until so many chunks can be had. False when nothing more will leave. Throws um::Error.
  bool make_room(uint64_t chunks);
  // From now on with this many chunks: what must leave for that has left when it returns. Throws um::Error.
  void set_budget(uint64_t chunks);

  // ---- what plans ask for; false: it is so already, or cannot be now ----
  bool swap_in(Movable* block);
  bool swap_out(Movable* block);
  // It leaves when room is needed for what a plan brings. With a copy: a plan may be wrong about a step.
  bool set_spare(Movable* block);
  // Begins what there is room for now. Throws um::Error.
  void progress();
  bool busy() const { return !queue_.empty(); }

  UseOrder order;
  MoveWaits waits;
  Transfers transfers;
  // Asked where nothing will leave any more: whether it has ended something, so that there is more room or more may.
  std::function<bool()> last_resort = [] { return false; };

 private:
  Movable* made_of(Block* block, const Residence& residence, uint64_t bytes);
  void note_op(const Uses& uses);
  bool bring(Movable* block, driver::CUstream stream);
  void unqueue(Movable* block) noexcept;
  bool evict_one();
  bool send(Movable* block, um_swap_cause cause);
  uint64_t chunks_of(const Movable& block) const { return memory_.chunks_of(block.block->record.bytes); }
  [[noreturn]] void refuse(const Uses& uses, uint64_t chunks = 0) const;

  MovableMemory& memory_;
  SwapEvents& events_;
  StablePool<Movable> pool_;
  std::deque<Movable*> queue_;  // to come, first the first
};

}  // namespace um
