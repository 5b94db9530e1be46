// What a device that computes while the host runs ahead stood still for: pairs of events around what its streams wait
// for, each for one op and, where it is known, one allocation. Not thread-safe: the device's lock is held, and its
// context is current.
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

  // Around what one stream may be made to wait for: `what` is told of when it is known how long that was.
  template <class Waits>
  void around(driver::CUstream stream, const um_event& what, const Waits& waits) {
    watched_ = &stream;
    const OnError forget([&] { end_watch(); });
    waits();
    watched_ = nullptr;
    if (begin_ != nullptr) note(std::exchange(begin_, nullptr), record(stream), what);
  }
  // Counts and tells those that have ended, from the first on.
  void settle() noexcept;
  // Has each that is counted before it is told, and may say when it began; nullptr: nobody does.
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
  driver::CUevent begin_ = nullptr;  // of the stall that is being made
  std::deque<Open> open_;
  std::vector<driver::CUevent> all_, idle_;
};

}  // namespace um
