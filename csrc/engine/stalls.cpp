#include "engine/stalls.h"

#include <cmath>
#include <new>

namespace um {

using driver::CUDA_SUCCESS;
using driver::CUevent;

Stalls::~Stalls() {
  for (const CUevent event : all_) static_cast<void>(backend_.call().event_destroy(event));
}

// nullptr: the driver makes no event, or takes none, and this stall is not counted.
CUevent Stalls::record(driver::CUstream stream) noexcept {
  try {
    if (idle_.empty()) settle();
    if (idle_.empty()) {
      all_.reserve(all_.size() + 1);
      idle_.reserve(all_.size() + 1);
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

void Stalls::note(CUevent begin, CUevent end, int64_t* account) noexcept {
  try {
    if (end != nullptr) {
      open_.push_back({begin, end, account});
      return;
    }
  } catch (const std::bad_alloc&) {
    idle_.push_back(end);  // has room for all there are
  }
  idle_.push_back(begin);
}

void Stalls::settle() noexcept {
  for (; !open_.empty(); open_.pop_front()) {
    const Open& first = open_.front();
    float milliseconds = 0;
    if (backend_.call().event_elapsed_time(&milliseconds, first.begin, first.end) != CUDA_SUCCESS) return;
    *first.account += std::llround(static_cast<double>(milliseconds) * 1e6);
    idle_.push_back(first.begin);
    idle_.push_back(first.end);
  }
}

}  // namespace um
