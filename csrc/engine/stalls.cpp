#include "engine/stalls.h"

#include <cmath>
#include <new>

#include "memory/room.h"

namespace um {

using driver::CUDA_SUCCESS;
using driver::CUevent;
using driver::CUstream;

Stalls::Stalls(const Backend& backend, Fences& fences, SwapEvents& events)
    : backend_(backend), fences_(fences), events_(events) {
  if (!backend.hooks->in_host) fences.before_waits([this](CUstream stream) { before_wait(stream); });
}

Stalls::~Stalls() {
  fences_.before_waits([](CUstream) {});
  for (const CUevent event : all_) static_cast<void>(backend_.call().event_destroy(event));
}

// Returns nullptr if the driver has no more events, or refuses one. The stall is then not counted.
CUevent Stalls::record(CUstream stream) noexcept {
  try {
    if (idle_.empty()) settle();
    if (idle_.empty()) {
      make_room(all_, all_.size() + 1);
      make_room(idle_, all_.size() + 1);
      CUevent event = nullptr;
      if (backend_.call().event_create(&event, driver::CU_EVENT_DEFAULT) != CUDA_SUCCESS) return nullptr;
      all_.push_back(event);
      idle_.push_back(event);
    }
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  const CUevent event = idle_.back();
  if (backend_.call().event_record(event, stream) != CUDA_SUCCESS) return nullptr;
  idle_.pop_back();
  return event;
}

void Stalls::before_wait(CUstream stream) noexcept {
  if (watched_ != nullptr && *watched_ == stream && begin_ == nullptr) begin_ = record(stream);
}

void Stalls::end_watch() noexcept {
  watched_ = nullptr;
  if (begin_ != nullptr) idle_.push_back(std::exchange(begin_, nullptr));
}

void Stalls::note(CUevent begin, CUevent end, const um_event& what) noexcept {
  try {
    if (end != nullptr) {
      open_.push_back({begin, end, what});
      return;
    }
  } catch (const std::bad_alloc&) {
    idle_.push_back(end);  // has capacity for all events
  }
  idle_.push_back(begin);
}

void Stalls::settle() noexcept {
  for (; !open_.empty(); open_.pop_front()) {
    Open& first = open_.front();
    float milliseconds = 0;
    if (backend_.call().event_elapsed_time(&milliseconds, first.begin, first.end) != CUDA_SUCCESS) return;
    first.what.duration_ns = std::llround(static_cast<double>(milliseconds) * 1e6);
    if (timed) timed(first.begin, &first.what);
    events_.waited(first.what);
    idle_.push_back(first.begin);
    idle_.push_back(first.end);
  }
}

}  // namespace um
