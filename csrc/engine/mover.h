// Decides which allocations move, and when: makes device memory available for what ops use and allocate, and carries
// out the moves that plans request.
//
// The host never waits here. If device memory is short, allocations that are being evicted are handed on first; then
// the victims of UseOrder are evicted; then last_resort() is called. Requested swap-ins wait in a queue until there is
// device memory.
//
// Example: the budget is 10 chunks, and 9 are taken. An op needs 3 more. Nothing is being evicted, so make_room()
// evicts the allocation that is used last, of 2 chunks, and hands it on: then 3 chunks are obtainable.
//
// Not thread-safe: callers hold the device's lock. The device's context is current wherever copies may start.
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

  // Every allocation must have been freed before the destructor runs. Throws um::Error.
  Mover(const Backend& backend, MovableMemory& memory, Fences& fences, SwapEvents& events, Owners& owners)
      : waits(backend, fences, events),
        transfers(backend, memory, fences, events, owners, order, waits),
        memory_(memory),
        events_(events) {}

  // Makes an allocation on the device, pinned, whose memory `stream` may use at once; nullptr: there is no memory.
  // `storage`: its future Record::storage. Throws um::Error.
  [[nodiscard]] Movable* make(uint64_t bytes, driver::CUstream stream, int32_t storage = -1);
  // Does the same without evicting anything; nullptr: there is no free memory.
  [[nodiscard]] Movable* make_idle(uint64_t bytes, driver::CUstream stream, int32_t storage = -1);
  // Makes an allocation on the host, which is swapped in at its first use. The further work of `user` may use it there;
  // or without a stream the CPU may, and this call waits. nullptr: the host has no memory. Throws um::Error.
  [[nodiscard]] Movable* make_out(uint64_t bytes, const driver::CUstream* user = nullptr);
  // Gives back all places of an allocation, without waiting.
  void free(Movable* block) noexcept;

  // Returns true, and notes the uses, if all pinned allocations are on the device and ready for the op.
  [[nodiscard]] bool at_hand(const Uses& uses, driver::CUstream stream);
  // Swaps pinned allocations in, and orders `stream` after that; one without a known owner is used where it lies.
  // Returns false if they do not fit, and some may have been swapped in. `anyway`: the others are then used where they
  // lie. Throws um::Error, also if the host has no memory for an eviction.
  [[nodiscard]] bool acquire(const Uses& uses, driver::CUstream stream, bool anyway = false);
  // Waits on the host until all bytes of an allocation are where it lies. Throws um::Error.
  void finish_arrival(Movable* block);
  // Return the chunks that an op needs with these operands, and results of so many bytes each: as allocations lie now,
  // and at most, in any budget in which the step runs.
  Need need(const Uses& uses, const std::vector<uint64_t>& made_bytes) const;
  Need need_in_any_budget(const Uses& uses, const std::vector<uint64_t>& made_bytes) const;
  // Notes an allocation that did not fit on the device, where it would remain if no storage showed its address.
  void note_displaced(const Movable* block) { displaced_.push_back(block); }
  // Evicts allocations until so many bytes fit. Returns false if nothing more can be evicted. Throws um::Error.
  [[nodiscard]] bool make_room(uint64_t bytes);
  // Does the same for an allocation that returns from the host.
  [[nodiscard]] bool make_room(const Movable& block);
  // Evicts all allocations in shared chunks, if possible, so that their packing afterwards does not depend on earlier
  // steps. Throws um::Error.
  void unpack();
  // Sets the number of chunks, and evicts what exceeds it before returning. Throws um::Error.
  void set_budget(uint64_t chunks);

  // Notes that an op begins: from now on swap-ins are requested for this op or a later one.
  void begin_op() { ++ops_; }

  // ---- what plans ask for; false: it is so already, or cannot be now ----
  bool swap_in(Movable* block);
  bool swap_out(Movable* block);
  // Marks an allocation as the first to be evicted. It is evicted with a copy, because a plan may be wrong about a
  // step.
  bool evict_first(Movable* block);
  // Begins the queued swap-ins for which there is device memory now. Throws um::Error.
  void progress();
  bool busy() const { return !queue_.empty(); }

  // ---- what comes and leaves ahead of time ----
  // Returns the free device memory after all queued swap-ins; negative: it will not suffice for them.
  int64_t room_bytes() const;
  uint64_t queued_bytes() const;  // of all queued swap-ins
  // Return the device memory that an allocation takes.
  int64_t room_of(uint64_t bytes) const { return static_cast<int64_t>(memory_.room_of(bytes)); }
  int64_t room_of(const Movable& block) const { return room_of(block.block->record.bytes); }
  // Evicts the allocation that is used last, if that is more than `later_than` ops ahead. Returns its device memory; 0:
  // there is none.
  int64_t send_away(int64_t later_than);
  // Returns how many evictions no plan requested.
  int64_t evictions() const { return events_.counted.evictions; }

  UseOrder order;
  MoveWaits waits;
  Transfers transfers;
  // Called if nothing more can be evicted. Returns whether it has made more device memory available or evictable.
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
  std::deque<Movable*> queue_;  // swap-ins to begin, in order
  std::vector<const Movable*> displaced_;
  Level parts_bytes_;  // of all allocations that share chunks, wherever they lie
  uint64_t ops_ = 1;   // how many have begun
};

}  // namespace um
