#include "engine/event_log.h"

#include <algorithm>
#include <new>

namespace um {

void tell_of(const OpIdentity& op, um_event* event) noexcept {
  event->step = op.step;
  event->op_index = op.index;
  event->op = op.op;
  event->module = op.module;
  event->phase = op.phase;
}

void tell_of(const Record& record, um_event* event) noexcept {
  event->allocation = record.serial;
  event->allocation_bytes = record.bytes;
  event->role = record.role;
  event->name = record.name;
  event->birth_op = record.birth_op;
  event->birth_module = record.birth_module;
}

void EventLog::push(const um_event& event) noexcept {
  if (events_.size() == kMostEvents) {
    ++dropped_;
    return;
  }
  try {
    events_.push_back(event);
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

uint64_t EventLog::drain(um_event* out, uint64_t capacity) noexcept {
  const uint64_t count = std::min<uint64_t>(events_.size(), capacity);
  std::copy_n(events_.begin(), count, out);
  events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

}  // namespace um
