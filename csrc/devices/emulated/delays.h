// Adversarial delays: wherever the contract leaves the order open, a test may stretch it, so that a missing wait shows
// up as wrong data. Seeded, so that a run can be repeated as far as threads allow.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/scattered.h"

namespace um::emulated {

class Delays {
 public:
  Delays(uint32_t most_us, uint64_t seed) : most_us_(most_us), state_(seed * 2 + 1) {}

  void wait() {
    if (most_us_ == 0) return;
    // Any thread advances this shared counter without a lock.
    const uint64_t count = state_.fetch_add(kGoldenRatio, std::memory_order_relaxed);
    const auto microseconds = static_cast<long>(scattered(count - kGoldenRatio) % (most_us_ + 1));
    const timespec span{0, microseconds * 1000};
    nanosleep(&span, nullptr);
  }

 private:
  uint32_t most_us_;
  std::atomic<uint64_t> state_;
};

}  // namespace um::emulated
