// The copy engines of a device: each direction a queue, a copy's speed changing while the other direction is busy.
//
// Time only goes forward: `advance_to` and `submit` never go back behind `now_ns()`.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "umadvise.h"

namespace um::simulator {

enum Direction : uint8_t { kToDevice = 0, kToHost = 1 };

struct Copy {
  int64_t bytes;
  int32_t storage, op;
  uint32_t step, serial;
  um_cause cause;
};

enum class Begin { started, waits, dropped };

class CopyListener {
 public:
  virtual ~CopyListener() = default;
  // The next copy of a direction could start: it does, it waits with all behind it, or it is not wanted any more.
  virtual Begin begins(Direction direction, const Copy& copy) = 0;
  virtual void ended(Direction direction, const Copy& copy, int64_t start_ns, uint8_t engine) = 0;
};

class SwapLink {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  SwapLink(const um_link& link, CopyListener& listener) : link_(link), listener_(listener) {}

  int64_t now_ns() const { return now_ns_; }
  // Puts a copy at the end of its direction's queue, or before all that have not started.
  void submit(Direction direction, const Copy& copy, bool first);
  // Starts what could not start before, when the reason has gone.
  void start_waiting();
  void advance_to(int64_t time_ns);
  // When something will happen if nothing else is submitted; kNever when all is quiet.
  int64_t next_event_ns() const;
  // Whether the next copy of a direction could start if `begins` had let it.
  bool waits(Direction direction) const {
    return !queued_[direction].empty() && running_[direction].size() < link_.engines[direction];
  }
  // The storages of copies have new indices.
  void rename(const std::vector<int32_t>& names);

 private:
  struct Running {
    Copy copy;
    int64_t start_ns, fixed_left_ns;
    double bytes_left;
    uint8_t engine;
  };
  bool transfers(Direction direction) const;
  double bytes_per_ns(Direction direction) const;
  void pass(int64_t duration_ns);
  void end_finished();
  void start(Direction direction);

  const um_link link_;
  CopyListener& listener_;
  int64_t now_ns_ = 0;
  std::array<std::deque<Copy>, 2> queued_;
  std::array<std::vector<Running>, 2> running_;
  std::array<uint32_t, 2> engines_used_{};  // a bit for each
};

}  // namespace um::simulator
