// The allocations that are arriving or on the device, in order of their last use, and the choice of the next victim.
//
// Without an Outlook the victim is the least recently used allocation; with one it is the allocation whose next use is
// furthest ahead. Allocations whose contents a plan does not need are evicted before all others.
//
// Example: A, B and C were used in this order, and are used again 2, 9 and 5 ops ahead. victim() returns B, and
// victim(9) returns nullptr.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <cstdint>

#include "engine/movable.h"

namespace um {

// Predicts how far ahead allocations are used.
class Outlook {
 public:
  virtual ~Outlook() = default;
  // Returns the number of ops until the next use; the largest value if no further use is known.
  virtual int64_t next_use(const Block& block) const = 0;
  // Returns how long the device takes for the op that begins, in any unit.
  virtual double op_duration() const { return 1; }
  // Returns the key (Record::storage) that an allocation of so many bytes will get now; -1: unknown.
  virtual int32_t expected_key(uint64_t /*bytes*/) const { return -1; }
};

class UseOrder {
 public:
  // Notes that an allocation arrives on the device, or is used there: it is the newest, and not one of the first to
  // evict.
  void use(Movable* block) noexcept;
  // Removes an allocation that is evicted or freed.
  void remove(Movable* block) noexcept;
  // From now on the allocation is evicted before all others, until it is used.
  void evict_first(Movable* block) noexcept;
  // Return the next victim among the first to evict, and among all. nullptr: none may be evicted.
  Movable* first_victim() const;
  // `later_than`: only an allocation that is used more than so many ops ahead.
  Movable* victim(int64_t later_than = -1) const;
  // Allows to evict allocations that kernels without an op may use. Returns false if there was none.
  bool let_go_of_reach() noexcept;
  // Returns the least recently used allocation; `newer` leads to the next one.
  Movable* oldest() const { return oldest_; }

  const Outlook* outlook = nullptr;  // borrowed; nullptr: evict the least recently used allocation

 private:
  Movable* oldest_ = nullptr;
  Movable* newest_ = nullptr;
  uint64_t first_victims_ = 0;
};

}  // namespace um
