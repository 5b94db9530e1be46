// Adversarial delays: wherever the contract leaves the order open, a test may stretch it, so that a missing wait shows
// up as wrong data. Seeded, so that a run can be repeated as far as threads allow.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

namespace um::emulated {

class Delays {
 public:
  Delays(uint32_t most_us, uint64_t seed) : most_us_(most_us), state_(seed * 2 + 1) {}

  void wait() {
    if (most_us_ == 0) return;
    // splitmix64 (Steele, Lea, Flood 2014) over a shared counter: any thread, no lock.
    uint64_t bits = state_.fetch_add(0x9E3779B97F4A7C15u, std::memory_order_relaxed);
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    const auto microseconds = static_cast<long>((bits ^ (bits >> 31)) % (most_us_ + 1));
    const timespec span{0, microseconds * 1000};
    nanosleep(&span, nullptr);
  }

 private:
  uint32_t most_us_;
  std::atomic<uint64_t> state_;
};

}  // namespace um::emulated
