#include "engine/swap_events.h"

#include "base/clock.h"

namespace um {

void SwapEvents::push(um_event event, um_event_kind kind, um_swap_cause cause, const Block& block) noexcept {
  event.address = block.address;
  event.kind = static_cast<uint16_t>(kind);
  event.cause = static_cast<uint16_t>(cause);
  tell_of(op, &event);
  tell_of(block, &event);
  log_.push(event);
}

void SwapEvents::moved(um_event_kind kind, um_swap_cause cause, const Block& block, uint64_t bytes) noexcept {
  if (!on) return;
  um_event event{};
  event.start_ns = now_ns();
  event.bytes = bytes;
  push(event, kind, cause, block);
}

void SwapEvents::waited(um_event_kind kind, um_swap_cause cause, const Block& block, int64_t start_ns,
                        int64_t duration_ns) noexcept {
  if (!on) return;
  um_event event{};
  event.start_ns = start_ns;
  event.duration_ns = duration_ns;
  push(event, kind, cause, block);
}

}  // namespace um
