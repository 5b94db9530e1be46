#include "engine/event_spans.h"

#include <cmath>
#include <new>

#include "umadvise.h"

namespace um {

using driver::CUDA_SUCCESS;
using driver::CUevent;
using driver::CUstream;

// A closed device has no events left, and no context for them.
void TimingEvents::destroy() noexcept {
  if (events_.empty()) return;
  const CurrentContext current(backend_);
  for (const CUevent event : events_) static_cast<void>(backend_.call().event_destroy(event));
  events_.clear();
  used_ = 0;
}

// Throws std::bad_alloc.
CUevent TimingEvents::take() {
  if (used_ == events_.size()) {
    events_.push_back(nullptr);
    if (backend_.call().event_create(&events_.back(), driver::CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
      events_.pop_back();
      return nullptr;
    }
  }
  return events_[used_++];
}

CUevent TimingEvents::record(CUstream stream) noexcept {
  try {
    const CUevent event = take();
    return event != nullptr && backend_.call().event_record(event, stream) == CUDA_SUCCESS ? event : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

int64_t TimingEvents::between_ns(CUevent first, CUevent second) const noexcept {
  float milliseconds = 0;
  if (backend_.call().event_elapsed_time(&milliseconds, first, second) != CUDA_SUCCESS) return UM_UNKNOWN;
  return std::llround(static_cast<double>(milliseconds) * 1e6);
}

EventSpans::Number EventSpans::begin(CUstream stream) noexcept {
  const CUevent event = events_.record(stream);
  if (event == nullptr) return 0;
  try {
    spans_.push_back({event, nullptr});
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return cleared_ << kIndexBits | spans_.size();
}

size_t EventSpans::index_of(Number number) const {
  const uint64_t place = number & ((uint64_t{1} << kIndexBits) - 1);
  return place != 0 && number >> kIndexBits == cleared_ ? place - 1 : spans_.size();
}

void EventSpans::end(Number number, CUstream stream) noexcept {
  const size_t index = index_of(number);
  if (index < spans_.size()) spans_[index].end = events_.record(stream);
}

int64_t EventSpans::length_ns(Number number) const noexcept {
  const size_t index = index_of(number);
  if (index >= spans_.size() || spans_[index].end == nullptr) return UM_UNKNOWN;
  return events_.between_ns(spans_[index].begin, spans_[index].end);
}

int64_t EventSpans::apart_ns(Number first, Number second) const noexcept {
  const size_t from = index_of(first), to = index_of(second);
  if (from >= spans_.size() || to >= spans_.size()) return UM_UNKNOWN;
  return events_.between_ns(spans_[from].begin, spans_[to].begin);
}

void EventSpans::clear() noexcept {
  spans_.clear();
  events_.reuse();
  ++cleared_;
}

void EventSpans::destroy() noexcept {
  clear();
  events_.destroy();
}

}  // namespace um
