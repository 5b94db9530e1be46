// Measures stalls of a device whose host runs ahead: pairs of events around the waits of its streams, each with its op
// and, if known, its allocation.
//
// Example: op 7 waits for a swap-in that ends 3 ms later. around() records an event in the op's stream before the wait,
// and one after it. The next settle() after both have passed reports a wait of 3 ms for op 7.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "base/on_error.h"
#include "engine/swap_events.h"
#include "memory/backend.h"
#include "memory/fence.h"

namespace um {

class Stalls {
 public:
  Stalls(const Backend& backend, Fences& fences, SwapEvents& events);
  ~Stalls();
  Stalls(const Stalls&) = delete;
  Stalls& operator=(const Stalls&) = delete;

  // Calls `waits`, which may make the stream wait, and measures how long it does. `what` is reported once that is
  // known.
  template <class Waits>
  void around(driver::CUstream stream, const um_event& what, const Waits& waits) {
    watched_ = &stream;
    const OnError forget([&] { end_watch(); });
    waits();
    watched_ = nullptr;
    if (begin_ != nullptr) note(std::exchange(begin_, nullptr), record(stream), what);
  }
  // Counts and reports the stalls that have ended, from the first one on, without waiting.
  void settle() noexcept;
  // Is called with each stall before it is reported, and may set when it began.
  std::function<void(driver::CUevent begin, um_event* what)> timed;

 private:
  struct Open {
    driver::CUevent begin, end;
    um_event what;
  };
  void before_wait(driver::CUstream stream) noexcept;
  void end_watch() noexcept;
  driver::CUevent record(driver::CUstream stream) noexcept;
  void note(driver::CUevent begin, driver::CUevent end, const um_event& what) noexcept;

  const Backend& backend_;
  Fences& fences_;
  SwapEvents& events_;
  const driver::CUstream* watched_ = nullptr;
  driver::CUevent begin_ = nullptr;  // begins the stall that is being recorded
  std::deque<Open> open_;
  std::vector<driver::CUevent> all_, idle_;
};

}  // namespace um
