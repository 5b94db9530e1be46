// Measures how long parts of a stream's work take, with two events around each, on the device's clock.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/backend.h"

namespace um {

// Events with timing, which are kept for reuse.
class TimingEvents {
 public:
  explicit TimingEvents(const Backend& backend) : backend_(backend) {}
  ~TimingEvents() { destroy(); }
  TimingEvents(const TimingEvents&) = delete;
  TimingEvents& operator=(const TimingEvents&) = delete;

  // Records an event. nullptr: the driver has no more events, or refused.
  driver::CUevent record(driver::CUstream stream) noexcept;
  // Makes all recorded events available for reuse.
  void reuse() { used_ = 0; }
  void destroy() noexcept;
  // Returns UM_UNKNOWN unless both events have passed.
  int64_t between_ns(driver::CUevent first, driver::CUevent second) const noexcept;

 private:
  driver::CUevent take();

  const Backend& backend_;
  std::vector<driver::CUevent> events_;  // all events
  size_t used_ = 0;                      // how many of them are recorded
};

class EventSpans {
 public:
  using Number = uint64_t;  // 0: it could not be recorded, and has no length

  explicit EventSpans(const Backend& backend) : events_(backend) {}

  Number begin(driver::CUstream stream) noexcept;
  void end(Number number, driver::CUstream stream) noexcept;
  // Returns UM_UNKNOWN until the span has ended on the device.
  int64_t length_ns(Number number) const noexcept;
  // Returns the time between the begins of two spans; UM_UNKNOWN until both have begun.
  int64_t apart_ns(Number first, Number second) const noexcept;
  size_t count() const { return spans_.size(); }
  // Invalidates all numbers.
  void clear() noexcept;
  void destroy() noexcept;

 private:
  static constexpr uint32_t kIndexBits = 32;
  struct Span {
    driver::CUevent begin{}, end{};
  };
  // Returns the index of a valid number; the number of spans for any other.
  size_t index_of(Number number) const;

  TimingEvents events_;
  std::vector<Span> spans_;
  uint64_t cleared_ = 0;  // how often clear() was called
};

}  // namespace um
