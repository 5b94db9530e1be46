// How long stretches of a stream took, by the device's own clock: two events around each. Not thread-safe: the device's
// lock is held, and its context is current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/backend.h"

namespace um {

// Events with a time, kept for the next use.
class TimingEvents {
 public:
  explicit TimingEvents(const Backend& backend) : backend_(backend) {}
  ~TimingEvents() { destroy(); }
  TimingEvents(const TimingEvents&) = delete;
  TimingEvents& operator=(const TimingEvents&) = delete;

  // nullptr when the driver makes no more, or takes none.
  driver::CUevent record(driver::CUstream stream) noexcept;
  // Nobody needs those that were recorded.
  void reuse() { used_ = 0; }
  void destroy() noexcept;
  // Both have happened; UM_UNKNOWN otherwise.
  int64_t between_ns(driver::CUevent first, driver::CUevent second) const noexcept;

 private:
  driver::CUevent take();

  const Backend& backend_;
  std::vector<driver::CUevent> events_;  // all there are
  size_t used_ = 0;                      // of them
};

class EventSpans {
 public:
  using Number = uint64_t;  // 0: it could not be noted, and has no length

  explicit EventSpans(const Backend& backend) : events_(backend) {}

  Number begin(driver::CUstream stream) noexcept;
  void end(Number number, driver::CUstream stream) noexcept;
  // UM_UNKNOWN until it has ended on the device.
  int64_t length_ns(Number number) const noexcept;
  // From the beginning of one to that of another; UM_UNKNOWN likewise.
  int64_t apart_ns(Number first, Number second) const noexcept;
  size_t count() const { return spans_.size(); }
  // Numbers that were given out stand for nothing from now on.
  void clear() noexcept;
  void destroy() noexcept;

 private:
  static constexpr uint32_t kIndexBits = 32;
  struct Span {
    driver::CUevent begin{}, end{};
  };
  // Of a number of now; the number of spans otherwise.
  size_t index_of(Number number) const;

  TimingEvents events_;
  std::vector<Span> spans_;
  uint64_t cleared_ = 0;  // how often
};

}  // namespace um
