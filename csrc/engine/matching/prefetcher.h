// Swaps storages in ahead of their use where no plan does: the program has no plan, the step differs from the program
// in sizes or ops, or the next step follows another program.
//
// A scan visits the ops ahead, first in this step's program, then in the next step's. Their begin is estimated from
// recorded durations and the link's speed. The scan treats ops in two groups:
// - *Next* ops begin within 1 ms. Their operands on the host are swapped in at once. If device memory is short for
//   these, or for what next ops allocate, allocations are evicted that are used only after the op that needs memory.
// - Further ops are visited until the link would have brought all their operands in time. The first of these operands
//   are swapped in now, up to 1 ms of link time ahead. They may replace only allocations that are used after all ops
//   visited: any other would have to be swapped in again over the same busy link.
// Operands that the plan swaps in at an op ahead are left to the plan. While a step has a plan and is exact
// (ProgramCursor::exact), the plan is trusted: the scan evicts nothing, and swaps in operands of next ops only.
//
// Example: ops last 0.2 ms, and the link moves 10 GB/s. When an op begins, the operands of the ops 4 to 9 ahead are on
// the host, 2 MB each, which is 0.2 ms of link time. Ops 1 to 6 ahead begin within 1 ms, so the operands of ops 4, 5
// and 6 are swapped in at once. The scan ends at op 13 ahead, which begins after 2.4 ms: later than the 1 ms and
// the 1.2 ms of link time. For the operands of ops 7 to 9, only allocations may be evicted that are used more than 13
// ops ahead.
//
// Invariant: the members that scan() sets up are used only while it runs.
//
// Not thread-safe: callers hold the device's lock, and the device's context is current.
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
  // The step has moved elsewhere, so the next call of scan() does not wait until a scan is due.
  void rescan_now() { due_ns_ = 0; }
  // Scans ahead when an op begins, if a scan is due. `next`: the program of the step after this one; nullptr: unknown.
  void scan(const ProgramCursor& cursor, const PersistentAllocations& persistent, const Program* next, Mover& mover);

 private:
  // An op ahead.
  struct At {
    const Program* program;
    int32_t op;
    bool this_step;
  };
  // The state of a scan at an op ahead.
  struct Walk {
    double ahead_ns = 0, link_ns = 0;  // time until the ops before it have run; time for which the link is busy
    int64_t ops = 1;                   // how many ops ahead it is
    int64_t free_bytes = 0;
    int64_t least_free_bytes = 0;  // the minimum at any of the next ops
    double scale = 1;              // of this step's sizes to the program's
    bool trusts_plan = false;      // the plan frees memory in time
  };
  bool is_next(const Walk& walk) const;
  Block* block_of(const At& at, int32_t storage) const;
  bool planned_after(const At& at, int32_t op) const;
  bool visit(const At& at, Mover& mover, Walk* walk);
  void count_plan(size_t first, size_t end, const At& at, Mover& mover, Walk* walk);
  static bool make_room(int64_t bytes, const int64_t& free_bytes, Mover& mover, Walk* walk);
  void prefetch_rest(Mover& mover, Walk* walk);

  // scan() uses these while it runs.
  const ProgramCursor* cursor_ = nullptr;
  const PersistentAllocations* persistent_ = nullptr;
  std::vector<Movable*> rest_;                           // operands of further ops that are on the host
  std::unordered_set<const Movable*> planned_swap_ins_;  // what the plan swaps in before the op at hand
  double due_ns_ = 0;                                    // the time of ops until the next scan
};

}  // namespace um
