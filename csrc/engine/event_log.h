// What happened, waiting to be read: bounded, the newest are dropped when nobody reads; and the parts of an event.
#pragma once

#include <cstdint>
#include <deque>

#include "engine/op_identity.h"
#include "memory/arena.h"
#include "umadvise.h"

namespace um {

// Writes into an event while which op it happened, and to which allocation.
void tell_of(const OpIdentity& op, um_event* event) noexcept;
void tell_of(const Record& record, um_event* event) noexcept;

class EventLog {
 public:
  static constexpr uint64_t kMostEvents = uint64_t{1} << 18;

  void push(const um_event& event) noexcept;
  uint64_t drain(um_event* out, uint64_t capacity) noexcept;
  uint64_t size() const { return events_.size(); }
  uint64_t dropped() const { return dropped_; }

 private:
  std::deque<um_event> events_;
  uint64_t dropped_ = 0;
};

}  // namespace um
