// An allocation that may move: where it lies, what else has its contents, and who shows its address to others.
//
//   host ──► (queued) ──► arriving ──► device ──► leaving ──► host
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
  leaving  // on the device, with a source: others can have its memory
};

// A source can replace the contents on the device. Recipes, which make contents again, will be a second one.
enum Source : uint8_t {
  kHostCopy = 1  // the host has the same contents, or will when a copy has ended
};

enum class Eviction : uint8_t {
  in_turn,  // by last use
  first,    // a plan says that nothing needs the contents
  barred    // kernels that no op announces may use it, until an op is given it
};

enum class Change : uint8_t {
  queue,        // a plan asks for it
  stay_out,     // the swap-in is called off, or the owner does not show the address any more
  arrive,       // the swap-in begins
  arrived,      // the copy of the swap-in has ended
  leave,        // the eviction begins, with a copy to the host if there is no source
  stay,         // the eviction is called off
  hand_on,      // others have its device memory
  end_source,   // a write makes the host copy stale, or others take its memory on the host
  copied_out,   // no copy to the host runs any more
  evict_first,  // a plan says that nothing needs the contents
  use,          // an op uses it, or its eviction begins: what a plan said before is out of date
  bar,          // kernels that no op announces may use it
  admit         // no such kernel runs any more
};

// Where an allocation lies, which sources its contents have, and when it may be evicted. `change` has all legal
// transitions; Movable::check() says which states fit which places. The device's lock is needed.
//
// Example: `leave` without a source begins a copy to the host, which is a source from then on. `stay` calls the
// eviction off while that copy runs. The allocation is on the device with a source, so its next eviction needs no copy.
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
      case Change::stay_out:
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
      case Change::stay:  // without a copy to the host the copy to the device may still run
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
  // By an op.
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
  Movable* older = nullptr;  // UseOrder's
  Movable* newer = nullptr;
  Movable* next_free = nullptr;  // StablePool's
  void* owner = nullptr;    // shows the address to others; nullptr: nobody has said that he does, so it stays there
  Fences::Fence moved = 0;  // the copy that runs, or ran last; of a departure without one: the last use before
  uint64_t streams = 0;     // that used it since it came (UsedStreams)
  Fences::Fence used = 0;   // where one stream alone did: the end of the last op; 0: nobody took it down
  uint64_t ordered = 0;     // ahead of time, when so many ops had begun, and not used since; 0: it is not so
  uint64_t part_bytes = 0;  // what it takes of a chunk that it shares; 0: it shares none
  uint32_t pins = 0;        // while there are any, it stays
  um_swap_cause cause = UM_SWAP_PLANNED;  // of the move that `moved` is
};

// Those who show allocations' addresses to others.
class Owners {
 public:
  virtual ~Owners() = default;
  // Whoever shows the address, if he can be told of another one; else nullptr.
  virtual void* remember(void* storage, uint64_t address) noexcept = 0;
  // The address is another one from now on. False: it is not shown there any more, and the allocation stays.
  virtual bool repoint(void* owner, uint64_t from, uint64_t to) noexcept = 0;
  // Nothing will be asked of him any more.
  virtual void forget(void* owner) noexcept = 0;
};

}  // namespace um
