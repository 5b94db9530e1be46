// Which allocations move, and when: what ops use and make finds room, and what plans ask for comes and goes.
//
// Nobody makes the host wait. Not thread-safe: the device's lock is held; the device's context is current wherever
// copies may start.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/refusal.h"
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

  // An allocation on the device, pinned, whose memory `stream` may use at once; nullptr: there is no room. `storage`:
  // what it will be called (Record). Throws um::Error.
  Movable* make(uint64_t bytes, driver::CUstream stream, int32_t storage = -1);
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
  // where it lies. False: they find no room, and some of them may have come; `anyway`: the others are used where they
  // lie. Throws um::Error, also when the host has no room for what must leave.
  bool acquire(const Uses& uses, driver::CUstream stream, bool anyway = false);
  // The host waits until all of an allocation's bytes are where it lies. Throws um::Error.
  void settle(Movable* block);
  // What an op needs that is given these allocations and has made others, of so many bytes each: as they lie now, and
  // at most, in whatever budget the step runs.
  Need need(const Uses& uses, const std::vector<uint64_t>& made_bytes) const;
  Need need_in_any_budget(const Uses& uses, const std::vector<uint64_t>& made_bytes) const;
  // An allocation that found no room on the device, where it would stay if no storage shows its address.
  void note_displaced(const Movable* block) { displaced_.push_back(block); }
  // Lets allocations leave until so many bytes find room. False when nothing more will leave. Throws um::Error.
  bool make_room(uint64_t bytes);
  // The same for an allocation that returns from the host.
  bool make_room(const Movable& block);
  // What shares chunks leaves, as far as it may: how it is packed when it comes again follows from what comes after
  // this alone. Throws um::Error.
  void unpack();
  // From now on with this many chunks: what must leave for that has left when it returns. Throws um::Error.
  void set_budget(uint64_t chunks);

  // An op begins: what is ordered from now on is so for this one or a later one.
  void begin_op() { ++ops_; }

  // ---- what plans ask for; false: it is so already, or cannot be now ----
  bool swap_in(Movable* block);
  bool swap_out(Movable* block);
  // It leaves when room is needed for what a plan brings. With a copy: a plan may be wrong about a step.
  bool set_spare(Movable* block);
  // Begins what there is room for now. Throws um::Error.
  void progress();
  bool busy() const { return !queue_.empty(); }

  // ---- what comes and leaves ahead of time ----
  // Bytes that whoever asks next will have, without what takes that is to come; less than 0: that will be too little.
  int64_t room_bytes() const;
  uint64_t queued_bytes() const;  // of what is to come
  // Of that, what an allocation of so many bytes takes.
  int64_t room_of(uint64_t bytes) const { return static_cast<int64_t>(memory_.room_of(bytes)); }
  int64_t room_of(const Movable& block) const { return room_of(block.block->record.bytes); }
  // What is used last begins to leave, if that is more than so many ops from now. Returns its room; 0: nothing does.
  int64_t send_away(int64_t later_than);
  // How much has left for room that nobody had ordered.
  int64_t evictions() const { return events_.counted.evictions; }

  UseOrder order;
  MoveWaits waits;
  Transfers transfers;
  // Asked where nothing will leave any more: whether it has ended something, so that there is more room or more may.
  std::function<bool()> last_resort = [] { return false; };

 private:
  Movable* made_of(Block* block, const Residence& residence, Where where, uint64_t bytes);
  void note_op(const Uses& uses);
  void leave(Movable* block, um_swap_cause cause);
  bool bring_all(const Uses& uses);
  bool bring(Movable* block);
  bool repack(const Uses& uses);
  template <class Lacking>
  bool make_chunks(const Lacking& lacking);
  void unqueue(Movable* block) noexcept;
  bool evict_one();
  bool send(Movable* block, um_swap_cause cause);
  uint64_t held_beside(const Uses& uses) const;
  uint64_t held_in_any_budget(const Uses& uses) const;
  uint64_t working(const Uses& uses, const std::vector<uint64_t>& made_bytes) const;

  MovableMemory& memory_;
  SwapEvents& events_;
  StablePool<Movable> pool_;
  std::deque<Movable*> queue_;  // to come, first the first
  std::vector<const Movable*> displaced_;
  Level parts_bytes_;  // of shared chunks, which all parts would take at once, wherever they lie
  uint64_t ops_ = 1;   // that have begun
};

}  // namespace um
