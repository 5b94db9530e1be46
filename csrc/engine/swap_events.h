// Tells the device's queue of what the swapper counts: about which allocation, and while which op.
#pragma once

#include <cstdint>

#include "engine/event_log.h"
#include "engine/op_identity.h"
#include "memory/arena.h"
#include "umadvise.h"

namespace um {

class SwapEvents {
 public:
  explicit SwapEvents(EventLog& log) : log_(log) {}

  // A copy, or a departure without one (0 bytes), begins now.
  void moved(um_event_kind kind, um_swap_cause cause, const Block& block, uint64_t bytes) noexcept;
  // An op stood still for a move of the block that has this cause.
  void waited(um_event_kind kind, um_swap_cause cause, const Block& block, int64_t start_ns,
              int64_t duration_ns) noexcept;

  bool on = false;
  OpIdentity op;  // that runs now

 private:
  void push(um_event event, um_event_kind kind, um_swap_cause cause, const Block& block) noexcept;

  EventLog& log_;
};

}  // namespace um
