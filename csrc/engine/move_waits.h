// The waits of streams and of the host for moves of allocations, and the record of the time that they stall.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
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

  // Wait for the current move of an allocation: stall() in the stream's further work, stand() on the host, for memory
  // or for a copy (UM_EVENT_WAIT_ROOM, UM_EVENT_WAIT_COPY). Throw um::Error.
  void stall(const Movable& block, driver::CUstream stream, Wait name);
  void stand(const Movable& block, um_event_kind for_what, Wait name);
  // Returns true, after any wait, if the allocation lies on the host and the CPU may read or write all of it now.
  // Returns false if it is on the device. Throws um::Error.
  [[nodiscard]] bool on_host(Movable* block, bool write);
  // Records the end of an op for the pinned allocations that only this stream used, so that a later user of their
  // memory waits for no later work of the stream.
  void end_use(const std::vector<Movable::Use>& uses, driver::CUstream stream) noexcept;
  // Returns the end of the ops that use an allocation, and of its current copy, with one reference. Throws um::Error.
  [[nodiscard]] Fences::Fence last_use(const Movable& block, Wait of_arrival, Wait of_departure);
  // Returns the end of all work that uses an allocation's places, with one reference.
  [[nodiscard]] Fences::Fence freed_after(const Movable& block) noexcept;

  UsedStreams streams;
  Stalls stalls;

 private:
  const Backend& backend_;
  Fences& fences_;
  SwapEvents& events_;
};

}  // namespace um
