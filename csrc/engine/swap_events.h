// Counts what moves, and tells the device's queue of it: about which allocation, and while which op.
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

  // A copy, or a departure without one (0 bytes), begins now; or an op stood still for a move of the block that has
  // this cause.
  void tell(um_event_kind kind, um_swap_cause cause, const Block& block, uint64_t bytes, int64_t start_ns,
            int64_t duration_ns = 0) noexcept;
  // What the op that runs now is about to wait for, on a device that does so later: without its time. nullptr: nobody
  // knows which allocation that is.
  um_event wait(um_event_kind kind, um_swap_cause cause, const Block* block) const noexcept;
  // How long that was is known now.
  void waited(const um_event& event) noexcept;

  // What lies there has a place on the device from now on, or none.
  void placed(const Block& block, bool there) noexcept;
  // The op runs now.
  void note(const OpIdentity& running) noexcept;

  um_swap_counters counted{};      // the totals that are of moves; how long a GPU waited, once its Stalls have settled
  int64_t on_demand_ns = 0;        // of wait_copy_ns: for what nobody had ordered
  bool on = false;                 // the queue is told
  Residency* residency = nullptr;  // while that is followed
  const Chunks* chunks = nullptr;  // that blocks show; nullptr: none
  OpIdentity op;                   // that runs now

 private:
  void count(um_event_kind kind, um_swap_cause cause, int64_t bytes, int64_t duration_ns) noexcept;

  EventLog& log_;
};

}  // namespace um
