// A bounded queue of events, written inside the fault handler: preallocated, guarded by the device's lock.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <new>

#include "devices/emulated/hooks.h"

namespace um::emulated {

class EventRing {
 public:
  static constexpr uint64_t kCapacity = uint64_t{1} << 17;

  EventRing() {
    void* memory = mmap(nullptr, kCapacity * sizeof(Event), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    events_ = static_cast<Event*>(memory);
  }
  ~EventRing() { munmap(events_, kCapacity * sizeof(Event)); }
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  void push(const Event& event) {
    if (!on) return;
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_ == kCapacity) {
      ++dropped;
      return;
    }
    events_[head % kCapacity] = event;
    head_.store(head + 1, std::memory_order_relaxed);
    pending_.store(true, std::memory_order_relaxed);
  }

  uint64_t drain(Event* out, uint64_t capacity) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    uint64_t count = 0;
    while (tail_ != head && count < capacity) out[count++] = events_[tail_++ % kCapacity];
    pending_.store(tail_ != head, std::memory_order_relaxed);
    return count;
  }

  bool pending() const { return pending_.load(std::memory_order_relaxed); }  // without the lock
  uint64_t dropped = 0;
  bool on = false;

 private:
  Event* events_;
  std::atomic<uint64_t> head_{0};
  uint64_t tail_ = 0;
  std::atomic<bool> pending_{false};
};

}  // namespace um::emulated
