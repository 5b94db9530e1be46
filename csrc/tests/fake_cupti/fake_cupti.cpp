// A library named libcupti.so.12 or .13 that keeps CUPTI's rules as the headers state them: one client at a time;
// records of what is configured and enabled, through buffers of the client, delivered at a flush by another thread; one
// layout a version, which only cuptiActivityGetNextRecord knows. The records are those that a test adds, and those of
// the emulated device where it works behind libcuda.so.1. FAKE_CUPTI_FAIL=symbol:code makes a function fail from the
// start.
#include "fake_cupti.h"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "driver/device_hooks.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace um::cupti;

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;
using Record = FakeCupti::Record;

FakeCupti& fake() { return *fake_cupti(); }

int64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec + FakeCupti::kClockOffsetNs;
}

CUptiResult called(const char* symbol) {
  const Lock lock(fake().mutex);
  const auto failing = fake().failing.find(symbol);
  return failing != fake().failing.end() ? failing->second : CUPTI_SUCCESS;
}
#define CALLED(symbol)                                                       \
  if (const CUptiResult failed = called(#symbol); failed != CUPTI_SUCCESS) { \
    return failed;                                                           \
  }

// The emulated device behind libcuda.so.1, or nullptr.
const um::driver::DeviceHooks* hooks() {
  void* const libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (libcuda == nullptr) return nullptr;
  const auto find = reinterpret_cast<const um::driver::DeviceHooks* (*)()>(dlsym(libcuda, "emulated_libcuda_hooks"));
  return find != nullptr ? find() : nullptr;
}

void add_emulated(const um::driver::DeviceEvent& event) {
  Record record{};
  record.kind = CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER;
  record.start = static_cast<uint64_t>(event.start_ns + FakeCupti::kClockOffsetNs);
  record.end = record.start + static_cast<uint64_t>(event.duration_ns);
  record.address = event.address;
  record.processId = static_cast<uint32_t>(getpid());
  switch (event.kind) {
    case UM_EVENT_FAULT_GROUP:
      record.counterKind = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT;
      record.address = event.address / 4096 * 4096;
      record.value = 1;
      record.flags = event.write ? CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_WRITE
                                 : CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_READ;
      break;
    case UM_EVENT_TRANSFER_H2D:
    case UM_EVENT_TRANSFER_D2H:
      record.counterKind = event.kind == UM_EVENT_TRANSFER_H2D
                               ? CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD
                               : CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH;
      record.value = event.bytes;
      record.flags = static_cast<uint32_t>(event.cause) + 1;
      break;
    default:
      return;
  }
  fake().add(record);
}

void drain_emulated(bool keep) {
  const um::driver::DeviceHooks* const device = hooks();
  if (device == nullptr) return;
  um::driver::DeviceEvent events[64];
  while (const uint64_t count = device->drain(0, events, 64)) {
    for (uint64_t i = 0; keep && i < count; ++i) {
      if (events[i].change == um::driver::ResidencyChange::none) add_emulated(events[i]);
    }
  }
}

// Records into the client's buffers, as many as fit, each delivered by a thread of the library's own.
void deliver(std::vector<std::vector<uint8_t>> records) {
  size_t next = 0;
  while (next < records.size()) {
    uint8_t* buffer = nullptr;
    size_t bytes = 0, most_records = 0;
    fake().requested(&buffer, &bytes, &most_records);
    if (buffer == nullptr) {
      fake().dropped += records.size() - next;
      return;
    }
    size_t used = 0;
    while (next < records.size() && used + records[next].size() <= bytes) {
      std::memcpy(buffer + used, records[next].data(), records[next].size());
      used += records[next++].size();
    }
    if (fake().keeps_buffers) continue;
    used -= std::exchange(fake().cut_bytes, 0);
    std::thread([&] {
      fake().completed(nullptr, 0, buffer, bytes, used);
      if (fake().lends_twice) fake().completed(nullptr, 0, buffer, bytes, used);
    }).join();
  }
}

}  // namespace

EXPORT FakeCupti* fake_cupti(void) {
  static FakeCupti* const made = [] {
    auto* const fresh = new FakeCupti;
    fresh->version = fresh->own_version = FAKE_CUPTI_VERSION;
    const char* const fail = std::getenv("FAKE_CUPTI_FAIL");
    const char* const colon = fail != nullptr ? std::strchr(fail, ':') : nullptr;
    if (colon != nullptr) {
      fresh->failing[std::string(fail, colon)] = static_cast<CUptiResult>(std::atoi(colon + 1));
    }
    return fresh;
  }();
  return made;
}

EXPORT CUptiResult cuptiGetVersion(uint32_t* version) {
  CALLED(cuptiGetVersion)
  *version = fake().version;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  CALLED(cuptiGetResultString)
  *text = result == CUPTI_ERROR_NOT_INITIALIZED ? "CUPTI_ERROR_NOT_INITIALIZED" : "CUPTI_ERROR_OF_SOME_KIND";
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback, void*) {
  CALLED(cuptiSubscribe)
  if (callback == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (fake().subscribed) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  fake().subscribed = true;
  callback(nullptr, CUpti_CallbackDomain{}, 0, nullptr);
  *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&fake());
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  CALLED(cuptiUnsubscribe)
  if (subscriber != reinterpret_cast<CUpti_SubscriberHandle>(&fake())) return CUPTI_ERROR_INVALID_PARAMETER;
  fake().subscribed = false;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                                  CUpti_BuffersCallbackCompleteFunc completed) {
  CALLED(cuptiActivityRegisterCallbacks)
  fake().requested = requested;
  fake().completed = completed;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityConfigureUnifiedMemoryCounter(CUpti_ActivityUnifiedMemoryCounterConfig* config,
                                                              uint32_t count) {
  CALLED(cuptiActivityConfigureUnifiedMemoryCounter)
  for (uint32_t i = 0; i < count; ++i) fake().counters[config[i].kind] = config[i].enable != 0;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  CALLED(cuptiActivityEnable)
  if (kind != CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER || fake().requested == nullptr) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  fake().enabled = true;
  if (const um::driver::DeviceHooks* const device = hooks()) {
    drain_emulated(false);
    device->record(0, true);
  }
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind) {
  CALLED(cuptiActivityDisable)
  fake().enabled = false;
  if (const um::driver::DeviceHooks* const device = hooks()) device->record(0, false);
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityFlushAll(uint32_t) {
  CALLED(cuptiActivityFlushAll)
  const Lock lock(fake().mutex);
  drain_emulated(true);
  if (uint8_t* const foreign = std::exchange(fake().foreign, nullptr)) {
    fake().completed(nullptr, 0, foreign, 4096, 4096);
  }
  deliver(std::exchange(fake().records, {}));
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes, CUpti_Activity** record) {
  if (buffer == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const auto size_of = [](const CUpti_Activity* at) -> size_t {
    if (at->kind == CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) return fake().record_bytes();
    return static_cast<uint32_t>(at->kind) == FakeCupti::kOtherKind ? FakeCupti::kOtherBytes : 0;
  };
  uint8_t* next = buffer;
  if (*record != nullptr) {
    next = reinterpret_cast<uint8_t*>(*record);
    switch (fake().astray) {
      case FakeCupti::Astray::no:
        next += size_of(*record);
        break;
      case FakeCupti::Astray::before:
        next = buffer - 8;
        break;
      case FakeCupti::Astray::same:
        break;
      case FakeCupti::Astray::behind:
        next = buffer + valid_bytes;
        break;
    }
    if (fake().astray != FakeCupti::Astray::no) {
      *record = reinterpret_cast<CUpti_Activity*>(next);
      return CUPTI_SUCCESS;
    }
  }
  if (next > buffer + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  const size_t left = static_cast<size_t>(buffer + valid_bytes - next);
  if (left == 0) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  if (left < sizeof(CUpti_Activity)) return CUPTI_ERROR_INVALID_KIND;
  auto* const at = reinterpret_cast<CUpti_Activity*>(next);
  const size_t bytes = size_of(at);
  // The real one knows sizes too, but not every version looks whether all of a record is there.
  if (bytes == 0) return CUPTI_ERROR_INVALID_KIND;
  *record = at;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(um::driver::CUcontext, uint32_t, size_t* dropped) {
  CALLED(cuptiActivityGetNumDroppedRecords)
  *dropped = std::exchange(fake().dropped, 0);
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  CALLED(cuptiGetTimestamp)
  *timestamp = static_cast<uint64_t>(clock_ns() - fake().clock_set_back_ns);
  return CUPTI_SUCCESS;
}
