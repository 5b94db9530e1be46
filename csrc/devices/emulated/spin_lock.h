// The one lock that the fault handler may take: it spins and yields, allocates nothing and asks the kernel for nothing
// else. Whoever holds it must not touch managed memory that could fault.
#pragma once

#include <sched.h>

#include <atomic>
#include <mutex>

namespace um::emulated {

class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

using SpinGuard = std::lock_guard<SpinLock>;

}  // namespace um::emulated
