// A bounded queue of events, written inside the fault handler: preallocated. One thread at a time writes, under the
// device's spin lock, and one reads, under the engine's lock; neither waits for the other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/lazy_array.h"
#include "devices/emulated/hooks.h"

namespace um::emulated {

class EventRing {
 public:
  static constexpr uint64_t kCapacity = uint64_t{1} << 17;

  void push(const Event& event) {
    if (!on) return;
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_.load(std::memory_order_acquire) == kCapacity) {
      ++dropped;
      return;
    }
    events_[head % kCapacity] = event;
    head_.store(head + 1, std::memory_order_release);
  }

  uint64_t drain(Event* out, uint64_t capacity) {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    const uint64_t count = std::min(head_.load(std::memory_order_acquire) - tail, capacity);
    for (uint64_t i = 0; i < count; ++i) out[i] = events_[(tail + i) % kCapacity];
    tail_.store(tail + count, std::memory_order_release);
    return count;
  }

  bool pending() const { return head_.load(std::memory_order_relaxed) != tail_.load(std::memory_order_relaxed); }
  std::atomic<uint64_t> dropped{0};
  std::atomic<bool> on{false};

 private:
  LazyArray<Event> events_{kCapacity};
  std::atomic<uint64_t> head_{0}, tail_{0};
};

}  // namespace um::emulated
