#include "engine/swap_events.h"

namespace um {

void SwapEvents::count(um_event_kind kind, um_swap_cause cause, int64_t bytes, int64_t duration_ns) noexcept {
  if (kind == UM_EVENT_SWAP_IN) {
    ++counted.swap_ins;
    counted.swap_in_bytes += bytes;
    if (cause == UM_SWAP_ON_DEMAND) ++counted.on_demand_swap_ins;
  } else if (kind == UM_EVENT_SWAP_OUT) {
    ++(bytes > 0 ? counted.swap_outs : counted.clean_drops);
    counted.swap_out_bytes += bytes;
    if (cause == UM_SWAP_FOR_ROOM) ++counted.evictions;
  } else {
    (kind == UM_EVENT_WAIT_ROOM ? counted.wait_room_ns : counted.wait_copy_ns) += duration_ns;
    if (kind == UM_EVENT_WAIT_COPY && cause == UM_SWAP_ON_DEMAND) on_demand_ns += duration_ns;
  }
}

void SwapEvents::tell(um_event_kind kind, um_swap_cause cause, const Block& block, uint64_t bytes, int64_t start_ns,
                      int64_t duration_ns) noexcept {
  count(kind, cause, static_cast<int64_t>(bytes), duration_ns);
  if (!on) return;
  um_event event = wait(kind, cause, &block);
  event.start_ns = start_ns;
  event.duration_ns = duration_ns;
  event.bytes = bytes;
  log_.push(event);
}

um_event SwapEvents::wait(um_event_kind kind, um_swap_cause cause, const Block* block) const noexcept {
  um_event event{};
  event.kind = static_cast<uint16_t>(kind);
  event.cause = static_cast<uint16_t>(cause);
  tell_of(op, &event);
  if (block == nullptr) return event;
  event.address = block->address;
  tell_of(block->record, &event);
  return event;
}

void SwapEvents::waited(const um_event& event) noexcept {
  count(static_cast<um_event_kind>(event.kind), static_cast<um_swap_cause>(event.cause), 0, event.duration_ns);
  if (on) log_.push(event);
}

void SwapEvents::placed(const Block& block, bool there) noexcept {
  if (residency == nullptr) return;
  for (uint64_t at = block.address / kBlockBytes * kBlockBytes; at < block.end(); at += kBlockBytes) {
    there ? residency->arrived(at, block.arena, true) : residency->left(at, block.arena, true);
  }
  note(op);
}

void SwapEvents::note(const OpIdentity& running) noexcept {
  if (residency != nullptr) residency->note(running, chunks == nullptr ? 0 : chunks->taken_bytes());
}

}  // namespace um
