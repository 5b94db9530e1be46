// Counts swaps and waits, and reports them to the device's event queue with their op and allocation.
#pragma once

#include <cstdint>

#include "engine/event_log.h"
#include "engine/op_identity.h"
#include "engine/residency.h"
#include "memory/arena.h"
#include "memory/chunks.h"
#include "umadvise.h"

namespace um {

class SwapEvents {
 public:
  explicit SwapEvents(EventLog& log) : log_(log) {}

  // Reports a copy or an eviction without one (0 bytes) that begins now, or an op's stall for a move of the block with
  // this cause.
  void tell(um_event_kind kind, um_swap_cause cause, const Block& block, uint64_t bytes, int64_t start_ns,
            int64_t duration_ns = 0) noexcept;
  // Returns the event of a wait that begins, on a device that stalls later, without its duration. `block` nullptr: the
  // allocation is unknown.
  um_event wait(um_event_kind kind, um_swap_cause cause, const Block* block) const noexcept;
  // Reports a wait whose duration is known now.
  void waited(const um_event& event) noexcept;

  // Notes that the allocation has device memory from now on, or has none.
  void placed(const Block& block, bool there) noexcept;
  // Notes the running op.
  void note(const OpIdentity& running) noexcept;

  um_swap_counters counted{};      // swap totals; waits of a GPU count after Stalls::settle()
  int64_t on_demand_ns = 0;        // the part of wait_copy_ns for swap-ins that were not ordered ahead
  bool on = false;                 // events are recorded
  Residency* residency = nullptr;  // set while residency is followed
  const Chunks* chunks = nullptr;  // the chunks that blocks show; nullptr: there are none
  OpIdentity op;                   // the running op

 private:
  void count(um_event_kind kind, um_swap_cause cause, int64_t bytes, int64_t duration_ns) noexcept;

  EventLog& log_;
};

}  // namespace um
