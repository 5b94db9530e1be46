// What a device that computes while the host runs ahead stood still for: pairs of events around what its streams wait
// for. Not thread-safe: the device's lock is held, and its context is current.
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

  // Around what one stream may be made to wait for: UM_TIME_SWAP_IN, UM_TIME_ON_DEMAND or UM_TIME_ROOM.
  template <class Waits>
  void around(driver::CUstream stream, um_time kind, const Waits& waits) {
    watched_ = &stream;
    const OnError forget([&] { end_watch(); });
    waits();
    watched_ = nullptr;
    if (begin_ != nullptr) note(std::exchange(begin_, nullptr), record(stream), kind);
  }
  // Counts those that have ended, from the first on.
  void settle() noexcept;
  // Told of each that is counted; nullptr: nobody is.
  std::function<void(driver::CUevent begin, int64_t length_ns, um_time kind)> told;

 private:
  struct Open {
    driver::CUevent begin, end;
    um_time kind;
  };
  void before_wait(driver::CUstream stream) noexcept;
  void end_watch() noexcept;
  driver::CUevent record(driver::CUstream stream) noexcept;
  void note(driver::CUevent begin, driver::CUevent end, um_time kind) noexcept;

  const Backend& backend_;
  Fences& fences_;
  SwapEvents& events_;
  const driver::CUstream* watched_ = nullptr;
  driver::CUevent begin_ = nullptr;  // of the stall that is being made
  std::deque<Open> open_;
  std::vector<driver::CUevent> all_, idle_;
};

}  // namespace um
