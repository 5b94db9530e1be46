// What comes and leaves ahead of time where no plan does it: where a program has none, where the step has other sizes
// or other ops than the program, and where another program comes next. Not thread-safe: the device's lock is held, and
// its context is current.
//
// What the next ops use is brought, and what is used last leaves where there is no room for that, or will be none for
// what they make. Beyond, ops are looked at until the link would have brought all that they lack before they begin:
// until then it is busy, and the first of these begin to come now. They take only the room of what is used after that:
// what is used sooner would have to come again, over the same busy link.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "engine/matching/persistent_allocations.h"
#include "engine/matching/program_cursor.h"
#include "engine/mover.h"

namespace um {

class Prefetcher {
 public:
  // The step is somewhere else than it was: it looks ahead at once.
  void rescan_now() { due_ns_ = 0; }
  // An op begins. `next`: the program of the step after this one; nullptr: not known.
  void scan(const ProgramCursor& cursor, const PersistentAllocations& persistent, const Program* next, Mover& mover);

 private:
  // An op ahead.
  struct At {
    const Program* program;
    int32_t op;
    bool this_step;
  };
  // What lies ahead, in order.
  struct Walk {
    double ahead_ns = 0, link_ns = 0;
    int64_t ops = 1;               // from the op that begins
    int64_t free_bytes = 0;        // bytes
    int64_t least_free_bytes = 0;  // of that, at any of the next ops
    double scale = 1;              // of sizes, to the program's
    bool trusts_plan = false;      // the plan to make room
  };
  bool is_next(const Walk& walk) const;
  Block* block_of(const At& at, int32_t storage) const;
  bool planned_after(const At& at, int32_t op) const;
  bool visit(const At& at, Mover& mover, Walk* walk);
  void count_plan(size_t first, size_t end, const At& at, Mover& mover, Walk* walk);
  static bool make_room(int64_t bytes, const int64_t& free_bytes, Mover& mover, Walk* walk);
  void prefetch_rest(Mover& mover, Walk* walk);

  // While it looks.
  const ProgramCursor* cursor_ = nullptr;
  const PersistentAllocations* persistent_ = nullptr;
  std::vector<Movable*> rest_;                           // what is lacking beyond the next ops
  std::unordered_set<const Movable*> planned_swap_ins_;  // what the plan brings before the op that is looked at
  double due_ns_ = 0;                                    // until it looks again
};

}  // namespace um
