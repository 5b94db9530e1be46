// A bounded queue of events, written inside the fault handler: preallocated. One thread at a time writes, under the
// device's spin lock, and one reads, under the engine's lock; neither waits for the other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/lazy_array.h"
#include "devices/emulated/link.h"
#include "driver/device_hooks.h"

namespace um::emulated {

class EventRing {
 public:
  static constexpr uint64_t kCapacity = uint64_t{1} << 17;

  explicit EventRing(const Link& link) : link_(link) {}

  // What began at `start_ns` and is over now, or when the charged link is done with the present work.
  void push(um_event_kind kind, Cause cause, uint64_t address, uint64_t bytes, int64_t start_ns, bool write = false,
            bool unordered = false, bool first_touch = false) {
    if (!on) return;
    const int64_t end_ns = std::max(link_.now_ns(), link_.at_ns());
    push({start_ns, end_ns - start_ns, address, bytes, context.load(std::memory_order_relaxed), kind, cause, write,
          unordered, first_touch, driver::ResidencyChange::none});
  }
  // Of the block at `address`.
  void push(driver::ResidencyChange change, uint64_t address) {
    if (!on) return;
    driver::DeviceEvent event{};
    event.address = address;
    event.context = context.load(std::memory_order_relaxed);
    event.change = change;
    push(event);
  }

  uint64_t drain(driver::DeviceEvent* out, uint64_t capacity) {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    const uint64_t count = std::min(head_.load(std::memory_order_acquire) - tail, capacity);
    for (uint64_t i = 0; i < count; ++i) out[i] = events_[(tail + i) % kCapacity];
    tail_.store(tail + count, std::memory_order_release);
    return count;
  }

  bool pending() const { return head_.load(std::memory_order_relaxed) != tail_.load(std::memory_order_relaxed); }
  std::atomic<uint64_t> dropped{0};
  std::atomic<bool> on{false};
  std::atomic<uint64_t> context{0};  // DeviceHooks::set_context

 private:
  void push(const driver::DeviceEvent& event) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_.load(std::memory_order_acquire) == kCapacity) {
      ++dropped;
      return;
    }
    events_[head % kCapacity] = event;
    head_.store(head + 1, std::memory_order_release);
  }

  const Link& link_;
  LazyArray<driver::DeviceEvent> events_{kCapacity};
  std::atomic<uint64_t> head_{0}, tail_{0};
};

}  // namespace um::emulated
