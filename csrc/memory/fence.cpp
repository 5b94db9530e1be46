#include "memory/fence.h"

#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/room.h"

namespace um {

using driver::CUDA_ERROR_CONTEXT_IS_DESTROYED;
using driver::CUDA_ERROR_INVALID_HANDLE;
using driver::CUDA_ERROR_NOT_READY;
using driver::CUDA_SUCCESS;
using driver::CUevent;
using driver::CUresult;

namespace {

bool is_legacy(driver::CUstream stream) { return stream == nullptr || stream == driver::legacy_stream(); }

}  // namespace

Fences::~Fences() {
  constexpr int kAttempts = 3;  // for each event, because a failure may be transient
  for (const CUevent event : idle_) {
    for (int i = 0; i < kAttempts && backend_.call().event_destroy(event) != CUDA_SUCCESS; ++i) {
    }
  }
}

CUevent Fences::take_event() {
  if (idle_.empty()) {
    make_room(idle_, event_count_ + 1);  // so that recycling never allocates
    CUevent event = nullptr;
    backend_.check(backend_.call().event_create(&event, driver::CU_EVENT_DISABLE_TIMING), "creating an event");
    ++event_count_;
    return event;
  }
  const CUevent event = idle_.back();
  idle_.pop_back();
  return event;
}

void Fences::recycle(Entry& entry) noexcept {
  for (const CUevent event : entry.events) idle_.push_back(event);
  entry.events.clear();
  for (const Fence fence : entry.joined) release(fence);
  entry.joined.clear();
}

// Returns false if the stream has been destroyed.
bool Fences::record_event(CUevent event, driver::CUstream stream) {
  const CUresult result = backend_.call().event_record(event, stream);
  if (result != CUDA_ERROR_INVALID_HANDLE && result != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    backend_.check(result, "recording an event");
    return true;
  }
  if (left_out(Wait::stream_gone)) return false;
  backend_.check(backend_.call().ctx_synchronize(), "waiting for the device, as a stream is gone,");
  return false;
}

// Returns the fence that record() or join() takes next.
Fences::Fence Fences::prepared() {
  if (unused_.empty()) {
    make_room(unused_, entries_.size() + 1);
    entries_.emplace_back();
    unused_.push_back(static_cast<Fence>(entries_.size()));
  }
  return unused_.back();
}

Fences::Fence Fences::join(Fence one, Fence other) {
  if (one == kWholeDevice || other == kWholeDevice) return kWholeDevice;
  if (one == 0 || other == 0 || one == other) {
    const Fence alone = one != 0 ? one : other;
    retain(alone);
    return alone;
  }
  const Fence fence = prepared();
  entries_[fence - 1].joined.assign({one, other});
  entries_[fence - 1].legacy = false;
  retain(one);
  retain(other);
  unused_.pop_back();
  entries_[fence - 1].references = 1;
  return fence;
}

Fences::Fence Fences::record(driver::CUstream const* streams, size_t count, std::vector<driver::CUstream>* gone) {
  if (count == 0) return 0;
  const Fence fence = prepared();
  Entry& entry = entries_[fence - 1];
  entry.events.reserve(count);
  const OnError undo([&] { recycle(entry); });
  for (size_t i = 0; i < count; ++i) {
    entry.events.push_back(take_event());
    if (record_event(entry.events.back(), streams[i])) continue;
    idle_.push_back(entry.events.back());
    entry.events.pop_back();
    if (gone != nullptr) gone->push_back(streams[i]);
  }
  unused_.pop_back();
  entry.legacy = count == 1 && is_legacy(streams[0]);
  entry.references = 1;
  return fence;
}

CUresult Fences::query(Fence fence) noexcept {
  if (!counted(fence)) return fence == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  Entry& entry = entries_[fence - 1];
  while (!entry.events.empty()) {
    const CUresult result = backend_.call().event_query(entry.events.back());
    if (result != CUDA_SUCCESS) return result;
    idle_.push_back(entry.events.back());
    entry.events.pop_back();
  }
  for (; !entry.joined.empty(); entry.joined.pop_back()) {
    const CUresult result = query(entry.joined.back());
    if (result != CUDA_SUCCESS) return result;
    release(entry.joined.back());
  }
  return CUDA_SUCCESS;
}

bool Fences::passed(Fence fence, Wait name) {
  if (left_out(name)) return true;
  const CUresult result = query(fence);
  if (result == CUDA_ERROR_NOT_READY) return false;
  backend_.check(result, "asking for an event");
  return true;
}

bool Fences::surely_passed(Fence fence, Wait name) noexcept { return left_out(name) || query(fence) == CUDA_SUCCESS; }

void Fences::wait(Fence fence, Wait name) {
  if (left_out(name)) return;
  if (fence == kWholeDevice && !left_out(Wait::whole_device))
    backend_.check(backend_.call().ctx_synchronize(), "waiting for the device");
  if (!counted(fence)) return;
  Entry& entry = entries_[fence - 1];
  while (!entry.events.empty()) {
    backend_.check(backend_.call().event_synchronize(entry.events.back()), "waiting for an event");
    idle_.push_back(entry.events.back());
    entry.events.pop_back();
  }
  for (; !entry.joined.empty(); entry.joined.pop_back()) {
    wait(entry.joined.back(), name);
    release(entry.joined.back());
  }
}

void Fences::order(driver::CUstream stream, Fence fence, Wait name) {
  if (left_out(name)) return;
  if (!counted(fence)) return wait(fence, name);
  ++orders_;
  order_once(stream, fence);
}

// Visits each fence once. Fences that are joined repeatedly share most of their parts, so visiting each path would take
// time exponential in the number of joins.
void Fences::order_once(driver::CUstream stream, Fence fence) {
  Entry& entry = entries_[fence - 1];
  if (std::exchange(entry.ordered, orders_) == orders_ || (entry.legacy && is_legacy(stream))) return;
  for (const CUevent event : entry.events) {
    before_wait_(stream);
    backend_.check(backend_.call().stream_wait_event(stream, event, 0), "ordering a stream after an event");
  }
  for (const Fence each : entry.joined) order_once(stream, each);
}

void Fences::retain(Fence fence) noexcept {
  if (counted(fence)) ++entries_[fence - 1].references;
}

void Fences::release(Fence fence) noexcept {
  if (!counted(fence) || --entries_[fence - 1].references > 0) return;
  recycle(entries_[fence - 1]);
  unused_.push_back(fence);
}

}  // namespace um
