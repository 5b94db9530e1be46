#include "latest.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <type_traits>

#include "devices/emulated/call.h"
#include "driver/driver.h"

namespace um::driver {

namespace {

using emulated::stream_of;

// A function that gives a stream something to copy, move or discard.
template <auto slot>
struct Copy;
template <class... Parameters, CUresult (*Table::*slot)(Parameters...)>
struct Copy<slot> {
  static inline CUresult (*behind)(Parameters...) = nullptr;
  static CUresult call(Parameters... parameters) {
    CUstream stream = nullptr;
    const auto note = [&](auto value) {
      if constexpr (std::is_same_v<decltype(value), CUstream>) stream = value;
    };
    (note(parameters), ...);
    emulated::Device* const device = emulated::device_at(emulated::current_ordinal);
    if (device != nullptr) latest().submit(device, stream_of(stream), Latest::copies);
    return behind(parameters...);
  }
  static void stand_before(Table& table) {
    behind = table.*slot;
    table.*slot = call;
  }
};

struct PageLocked {
  std::mutex lock;
  std::map<void*, size_t> bytes;
};

PageLocked& page_locked() {
  static auto* const memory = new PageLocked;
  return *memory;
}

CUresult mem_host_alloc(void** address, size_t bytes, unsigned flags) {
  if (address == nullptr || bytes == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> guard(page_locked().lock);
  page_locked().bytes[*address = made] = bytes;
  return CUDA_SUCCESS;
}

CUresult mem_free_host(void* address) {
  const std::lock_guard<std::mutex> guard(page_locked().lock);
  const auto found = page_locked().bytes.find(address);
  if (found == page_locked().bytes.end()) return CUDA_ERROR_INVALID_VALUE;
  munmap(address, found->second);
  page_locked().bytes.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

Latest& latest() {
  static auto* const one = new Latest;  // streams work to the end of the process
  return *one;
}

void Latest::stand_before(Table& call) {
  Copy<&Table::memcpy_htod_async>::stand_before(call);
  Copy<&Table::memcpy_dtoh_async>::stand_before(call);
  Copy<&Table::memset_d8_async>::stand_before(call);
  Copy<&Table::mem_prefetch_async>::stand_before(call);
  Copy<&Table::mem_prefetch_batch_async>::stand_before(call);
  Copy<&Table::mem_discard_batch_async>::stand_before(call);
  call.mem_host_alloc = mem_host_alloc;
  call.mem_free_host = mem_free_host;
  call.stream_create = [](CUstream* stream, unsigned flags) { return latest().stream_create(stream, flags); };
  call.stream_destroy = [](CUstream stream) { return latest().stream_destroy(stream); };
  call.ctx_synchronize = [] { return latest().ctx_synchronize(); };
  call.stream_synchronize = [](CUstream stream) { return latest().stream_synchronize(stream); };
  call.event_synchronize = [](CUevent event) { return latest().event_synchronize(event); };
  call.stream_wait_event = [](CUstream stream, CUevent event, unsigned flags) {
    return latest().stream_wait_event(stream, event, flags);
  };
}

// ---- streams ------------------------------------------------------------------------------------------------------

CUresult Latest::stream_create(CUstream* stream, unsigned flags) {
  const CUresult result = emulated()->call.stream_create(stream, flags);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard<std::mutex> guard(lock_);
  streams_.insert(stream_of(*stream));
  gone_.erase(stream_of(*stream));
  return CUDA_SUCCESS;
}

// "In case the device is still doing work in the stream hStream when cuStreamDestroy() is called, the function will
// return immediately" (cuda.h).
CUresult Latest::stream_destroy(CUstream stream) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = streams_.find(stream_of(stream));
    if (found != streams_.end() && !(*found)->idle()) {
      gone_.insert(*found);
      return CUDA_SUCCESS;
    }
    if (found != streams_.end()) streams_.erase(found);
  }
  return emulated()->call.stream_destroy(stream);
}

CUstream Latest::placed(CUstream stream) {
  const CUstream nobodys = reinterpret_cast<CUstream>(~uintptr_t{0});
  const std::lock_guard<std::mutex> guard(lock_);
  return gone_.count(stream_of(stream)) != 0 ? nobodys : stream;
}

// ---- the host waits -----------------------------------------------------------------------------------------------

template <class Call>
CUresult Latest::wait(const Happened& happened, const Call& call) {
  uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    awaited_.emplace(number = ++waits_, happened);
  }
  const CUresult result = call();
  const std::lock_guard<std::mutex> guard(lock_);
  awaited_.erase(number);
  return result;
}

CUresult Latest::ctx_synchronize() {
  const auto idle = [this] {
    return std::all_of(streams_.begin(), streams_.end(), [](Stream* each) { return each->idle(); });
  };
  return wait(idle, [] { return emulated()->call.ctx_synchronize(); });
}

CUresult Latest::stream_synchronize(CUstream stream) {
  const auto synchronize = [stream] { return emulated()->call.stream_synchronize(stream); };
  Stream* const awaited = stream_of(stream);
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (streams_.count(awaited) == 0) return synchronize();
  }
  return wait([awaited] { return awaited->idle(); }, synchronize);
}

CUresult Latest::event_synchronize(CUevent event) {
  const auto happened = [event] { return emulated::finished(reinterpret_cast<emulated::EventObject*>(event)->last()); };
  return wait(happened, [event] { return emulated()->call.event_synchronize(event); });
}

// Notes in the stream itself when it stands still.
CUresult Latest::stream_wait_event(CUstream stream, CUevent event, unsigned flags) {
  emulated::Device* const device = emulated::device_at(emulated::current_ordinal);
  Stream* const waiting = stream_of(stream);
  if (kinds_ == 0 || device == nullptr || waiting == nullptr || event == nullptr)
    return emulated()->call.stream_wait_event(stream, event, flags);
  const emulated::Completion awaited = reinterpret_cast<emulated::EventObject*>(event)->last();
  device->submit(waiting, [this, waiting, awaited] {
    const std::lock_guard<std::mutex> guard(lock_);
    standing_[waiting] = awaited;
  });
  const CUresult result = emulated()->call.stream_wait_event(stream, event, flags);
  device->submit(waiting, [this, waiting] {
    const std::lock_guard<std::mutex> guard(lock_);
    standing_.erase(waiting);
  });
  return result;
}

// ---- work is held -------------------------------------------------------------------------------------------------

void Latest::submit(emulated::Device* device, Stream* stream, Kind kind) {
  if ((kinds_ & kind) == 0 || stream == nullptr) return;
  const uint64_t number = ++submitted_;
  device->submit(stream, [this, stream, number] { hold(stream, number); });
}

void Latest::hold(Stream* stream, uint64_t number) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    held_[number] = stream;
  }
  while (kinds_ != 0 && !is_due(number)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  const std::lock_guard<std::mutex> guard(lock_);
  held_.erase(number);
}

bool Latest::is_due(uint64_t number) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto pending = [](const auto& awaited) { return !awaited.second(); };
  if (held_.begin()->first != number || std::none_of(awaited_.begin(), awaited_.end(), pending)) return false;
  return std::all_of(streams_.begin(), streams_.end(), [&](Stream* stream) {
    const auto is_it = [&](const auto& held) { return held.second == stream; };
    return std::any_of(held_.begin(), held_.end(), is_it) || at_rest(stream);
  });
}

// Idle, or it stands still for what has not happened yet.
bool Latest::at_rest(Stream* stream) {
  const auto standing = standing_.find(stream);
  return standing != standing_.end() ? !emulated::finished(standing->second) : stream->idle();
}

}  // namespace um::driver
