#include "engine/swap_events.h"

namespace um {

void SwapEvents::tell(um_event_kind kind, um_swap_cause cause, const Block& block, uint64_t bytes, int64_t start_ns,
                      int64_t duration_ns) noexcept {
  if (!on) return;
  um_event event{};
  event.start_ns = start_ns;
  event.duration_ns = duration_ns;
  event.address = block.address;
  event.bytes = bytes;
  event.kind = static_cast<uint16_t>(kind);
  event.cause = static_cast<uint16_t>(cause);
  tell_of(op, &event);
  tell_of(block.record, &event);
  log_.push(event);
}

void SwapEvents::placed(const Block& block, bool there) noexcept {
  if (residency == nullptr) return;
  for (uint64_t at = block.address / kBlockBytes * kBlockBytes; at < block.end(); at += kBlockBytes) {
    there ? residency->arrived(at, block.arena) : residency->left(at, block.arena);
  }
}

}  // namespace um
