// A bounded queue of events until they are read. If it is full, new events are dropped.
#pragma once

#include <cstdint>
#include <deque>

#include "engine/op_identity.h"
#include "memory/arena.h"
#include "umadvise.h"

namespace um {

// Write into an event the op during which it happened, or the allocation that it is about.
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
