// The process's owners of allocations' addresses (um_owners_set), and the device's lock, whose release lets owners drop
// references.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "engine/movable.h"
#include "umadvise.h"

namespace um::owners {

// Sets the functions for the life of the process. Without them no allocation has an owner, so none moves.
void set(const um_owner_functions* functions) noexcept;

namespace detail {
inline thread_local bool references_pending = false;
void drop_references() noexcept;
}  // namespace detail

// The device's lock. Owners drop references only after it has been released: a dropped reference may free memory of the
// same device.
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
    if (detail::references_pending) detail::drop_references();
  }

 private:
  void release() noexcept {
    if (owns_lock()) unlock();
  }

  std::unique_lock<std::mutex> held_;
};

}  // namespace um::owners

namespace um {

// Returns the owners that owners::set named, which are called with a device's lock held.
Owners& process_owners();

}  // namespace um
