// An allocation that may move: where it lies, what else has its contents, and who shows its address to others.
//
//   `host` ──► (`queued`) ──► `arriving` ──► `device` ──► `leaving` ──► `host`
//
// A request can be cancelled (`queued` to `host`), and so can an eviction (`leaving` to `device`, or to `arriving` if
// the copy to the device may still run). An eviction may begin while the allocation arrives.
#pragma once

#include <cstdint>

#include "base/assert.h"
#include "memory/fence.h"
#include "memory/movable_memory.h"
#include "umadvise.h"

namespace um {

enum class Where : uint8_t {
  host,      // a copy to there may still run
  queued,    // on the host; a plan has asked for it, and its swap-in begins as soon as device memory is free
  arriving,  // on the device; the copy to there may still run
  device,
  leaving  // on the device, with a source: its memory may be handed on
};

// A source can restore the contents on the device.
enum Source : uint8_t {
  kHostCopy = 1  // the host has the same contents, or will when a copy has ended
};

enum class Eviction : uint8_t {
  in_turn,  // by last use
  first,    // a plan says that nothing needs the contents
  barred    // kernels without an op may use it, until an op has used it
};

enum class Change : uint8_t {
  queue,            // a plan requests it
  remain_out,       // the swap-in is cancelled, or the owner does not show the address any more
  arrive,           // the swap-in begins
  arrived,          // the copy of the swap-in has ended
  leave,            // the eviction begins, with a copy to the host if there is no source
  cancel_eviction,  // the eviction is cancelled
  hand_on,          // its device memory is handed on
  end_source,       // a write makes the host copy stale, or its host memory is reused
  copied_out,       // no copy to the host runs any more
  evict_first,      // a plan says that nothing needs the contents
  use,              // an op uses it, or its eviction begins: the plan's mark is out of date
  bar,              // kernels without an op may use it
  admit             // no such kernel runs any more
};

// Where an allocation lies, which sources its contents have, and when it may be evicted. `change` has all legal
// transitions; Movable::check() says which states fit which places. The device's lock is needed.
//
// Example: `leave` without a source begins a copy to the host, which is a source from then on. `cancel_eviction` ends
// the eviction while that copy runs. The allocation is on the device with a source, so its next eviction needs no copy.
// The first write waits for the copy and ends the source.
class MoveState {
 public:
  explicit MoveState(Where made = Where::device) : where_(made), sources_(made == Where::host ? kHostCopy : 0) {}

  bool is(Where where) const { return where_ == where; }
  bool resident() const { return is(Where::device) || is(Where::arriving); }
  bool out() const { return is(Where::host) || is(Where::queued); }
  bool has_source() const { return sources_ != 0; }  // an eviction needs no copy
  bool copying_out() const { return copying_out_; }  // a copy to the host may run
  bool evicted_first() const { return eviction_ == Eviction::first; }
  bool barred() const { return eviction_ == Eviction::barred; }

  void change(Change what) noexcept {
    switch (what) {
      case Change::queue:
        return go(is(Where::host), Where::queued);
      case Change::remain_out:
        return go(out(), Where::host);
      case Change::arrive:
        copying_out_ = false;
        return go(out(), Where::arriving);
      case Change::arrived:
        return go(is(Where::arriving), Where::device);
      case Change::leave:
        copying_out_ = copying_out_ || !has_source();
        sources_ |= kHostCopy;
        return go(resident(), Where::leaving);
      case Change::cancel_eviction:  // without a copy to the host the copy to the device may still run
        return go(is(Where::leaving), copying_out_ ? Where::device : Where::arriving);
      case Change::hand_on:
        return go(is(Where::leaving), Where::host);
      case Change::end_source:
        sources_ = 0;
        return go(resident(), where_);
      case Change::copied_out:
        copying_out_ = false;
        return;
      case Change::evict_first:
        UM_ASSERT(resident() && eviction_ == Eviction::in_turn);
        eviction_ = Eviction::first;
        return;
      case Change::use:
        if (evicted_first()) eviction_ = Eviction::in_turn;
        return;
      case Change::bar:
        UM_ASSERT(resident() && eviction_ == Eviction::in_turn);
        eviction_ = Eviction::barred;
        return;
      case Change::admit:
        if (barred()) eviction_ = Eviction::in_turn;
        return;
    }
  }

 private:
  void go(bool legal, Where where) noexcept {
    UM_ASSERT(legal);
    where_ = where;
  }

  Where where_;
  uint8_t sources_;
  Eviction eviction_ = Eviction::in_turn;
  bool copying_out_ = false;
};

struct Movable {
  // A use by an op.
  struct Use {
    Movable* block;
    bool write;
  };

  bool may_leave() const { return state.resident() && pins == 0 && owner != nullptr && !state.barred(); }

  // Checks the invariants that hold between calls (base/assert.h).
  bool check() const;

  Block* block = nullptr;
  Residence residence;
  MoveState state;
  Movable* older = nullptr;  // links of UseOrder
  Movable* newer = nullptr;
  Movable* next_free = nullptr;           // link of StablePool
  void* owner = nullptr;                  // shows the address; nullptr: unknown, so the allocation is not moved
  Fences::Fence moved = 0;                // the last copy; for an eviction without one: the last use before
  uint64_t streams = 0;                   // that used it since it arrived (UsedStreams)
  Fences::Fence used = 0;                 // if only one stream did: the end of its last op; 0: not recorded
  uint64_t ordered = 0;                   // the op count at which a plan requested it, if unused since; 0: none
  uint64_t part_bytes = 0;                // its part of a shared chunk; 0: it shares none
  uint32_t pins = 0;                      // it is not evicted while there are any
  um_swap_cause cause = UM_SWAP_PLANNED;  // of the move of `moved`
};

// The owners that show allocations' addresses.
class Owners {
 public:
  virtual ~Owners() = default;
  // Returns the owner that shows the address, if it can be re-pointed; else nullptr.
  [[nodiscard]] virtual void* remember(void* storage, uint64_t address) noexcept = 0;
  // Re-points the owner. Returns false if it does not show `from` any more; the allocation is then not moved.
  [[nodiscard]] virtual bool repoint(void* owner, uint64_t from, uint64_t to) noexcept = 0;
  // Ends the use of the owner.
  virtual void forget(void* owner) noexcept = 0;
};

}  // namespace um
