// What is waited for where allocations move, by streams and by the host, and how long they stood still for it. Not
// thread-safe: the device's lock is held, and its context is current.
#pragma once

#include <vector>

#include "engine/movable.h"
#include "engine/stalls.h"
#include "engine/swap_events.h"
#include "engine/used_streams.h"

namespace um {

class MoveWaits {
 public:
  MoveWaits(const Backend& backend, Fences& fences, SwapEvents& events)
      : streams(backend, fences),
        stalls(backend, fences, events),
        backend_(backend),
        fences_(fences),
        events_(events) {}

  // Wait for the move of an allocation that runs: what the stream is given from now on; and the host, which stands
  // still for room or for a copy (UM_EVENT_WAIT_ROOM, UM_EVENT_WAIT_COPY). Throw um::Error.
  void stall(const Movable& block, driver::CUstream stream, Wait name);
  void stand(const Movable& block, um_event_kind for_what, Wait name);
  // True where it lies on the host and the CPU may read, or write, all of it now; false: it is on the device. Throws
  // um::Error.
  bool on_host(Movable* block, bool write);
  // An op ends that has used pinned allocations in this stream alone: whoever gets their memory need not wait for more.
  void end_use(const std::vector<Movable::Use>& uses, driver::CUstream stream) noexcept;
  // The end of the ops that use an allocation, and of the copy that runs; with one reference. Throws um::Error.
  Fences::Fence last_use(const Movable& block, Wait of_arrival, Wait of_departure);
  // The end of all that uses an allocation's places, with one reference.
  Fences::Fence freed_after(const Movable& block) noexcept;

  UsedStreams streams;
  Stalls stalls;

 private:
  const Backend& backend_;
  Fences& fences_;
  SwapEvents& events_;
};

}  // namespace um
