// What is arriving or on the device, in order of its last use, and which of that leaves first. Not thread-safe: the
// device's lock is held.
#pragma once

#include <cstdint>

#include "engine/movable.h"

namespace um {

// How far ahead allocations are used.
class Outlook {
 public:
  virtual ~Outlook() = default;
  // In ops from now on; what is not known to be used again has the largest value.
  virtual int64_t next_use(const Block& block) const = 0;
  // How long the device will take for the op that begins; any number that is alike for all will do.
  virtual double op_duration() const { return 1; }
};

class UseOrder {
 public:
  // An allocation comes onto the device, or is used there: it is the newest, and no spare any more.
  void use(Movable* block) noexcept;
  // An allocation leaves the device, or is freed: it has no place in the order any more.
  void remove(Movable* block) noexcept;
  // An allocation leaves before all that are no spares, until it is used.
  void set_spare(Movable* block) noexcept;
  // Which leaves next: of the spares, and of all. nullptr: none of them may.
  Movable* spare() const;
  // `later_than`: nothing that is used within so many ops from now.
  Movable* victim(int64_t later_than = -1) const;
  // Allocations that kernels which no op announces may use can leave from now on. False: there was none.
  bool let_go_of_reach() noexcept;
  // The first of all; each one's `newer` follows.
  Movable* oldest() const { return oldest_; }

  const Outlook* outlook = nullptr;  // borrowed; nullptr: what was used longest ago leaves first

 private:
  Movable* oldest_ = nullptr;
  Movable* newest_ = nullptr;
  uint64_t spares_ = 0;
};

}  // namespace um
