// Who shows allocations' addresses to others, as the process has it (um_owners_set), and the device's lock, after
// which they settle.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "engine/movable.h"
#include "umadvise.h"

namespace um::owners {

// For the process and for good; without, nobody shows addresses that may change.
void set(const um_owner_functions* functions) noexcept;

namespace detail {
inline thread_local bool unsettled = false;
void settle() noexcept;
}  // namespace detail

// The device's lock. Owners settle once it has been released: what they let go of then may be memory of the device.
class Lock {
 public:
  Lock() = default;
  explicit Lock(std::mutex& mutex) : held_(mutex) {}
  Lock(std::mutex& mutex, std::try_to_lock_t how) : held_(mutex, how) {}
  Lock(Lock&&) = default;
  Lock& operator=(Lock&& other) noexcept {
    release();
    held_ = std::move(other.held_);
    return *this;
  }
  ~Lock() { release(); }

  bool owns_lock() const { return held_.owns_lock(); }
  void lock() { held_.lock(); }
  void unlock() {
    held_.unlock();
    if (detail::unsettled) detail::settle();
  }

 private:
  void release() noexcept {
    if (owns_lock()) unlock();
  }

  std::unique_lock<std::mutex> held_;
};

}  // namespace um::owners

namespace um {

// Of devices that users know of: whoever owners::set named, called with a device's lock held.
Owners& process_owners();

}  // namespace um
