#include "cupti/collector.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"

namespace um::cupti {
namespace {

constexpr int kClockAttempts = 5;
// Both clocks together are read to a tenth of a microsecond or so.
constexpr int64_t kShortestLineNs = 10000000;
// Beyond this from both clocks' last moment a time is no time of ours: eleven days.
constexpr int64_t kMostDistanceNs = int64_t{1000000} * 1000000000;

// The kinds that are wanted begin at 1 and end here; what lies beyond is of several devices.
constexpr auto kLastCounter = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP;

// No callback is ever enabled: the subscription only keeps others out, and us where others are in.
void nothing(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

}  // namespace

Collector& Collector::of_process() {
  static auto* const collector = new Collector;
  return *collector;
}

// ---- buffers -----------------------------------------------------------------------------------------------------

void Collector::requested(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = of_process().lend();
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}

void Collector::completed(driver::CUcontext, uint32_t, uint8_t* buffer, size_t bytes, size_t valid_bytes) {
  Collector& collector = of_process();
  const Buffer mine = collector.take_back(buffer);
  if (mine == nullptr) return;  // another client's, who was there before us
  Batch batch;
  try {
    batch = read_buffer(*collector.library_, buffer, std::min({valid_bytes, bytes, kBufferBytes}));
  } catch (const std::bad_alloc&) {
    batch.whole = false;
  }
  collector.keep(batch);
}

// nullptr when there are too many, or no memory.
uint8_t* Collector::lend() noexcept {
  const std::lock_guard<std::mutex> lock(buffers_mutex_);
  try {
    if (lent_.size() == kMostBuffers) return nullptr;
    lent_.push_back(std::make_unique<uint64_t[]>(kBufferBytes / sizeof(uint64_t)));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return reinterpret_cast<uint8_t*>(lent_.back().get());
}

// nullptr when it is not ours.
Collector::Buffer Collector::take_back(const uint8_t* buffer) noexcept {
  const std::lock_guard<std::mutex> lock(buffers_mutex_);
  for (Buffer& each : lent_) {
    if (reinterpret_cast<const uint8_t*>(each.get()) != buffer) continue;
    Buffer mine = std::move(each);
    each = std::move(lent_.back());
    lent_.pop_back();
    return mine;
  }
  return nullptr;
}

void Collector::keep(const Batch& batch) noexcept {
  const std::lock_guard<std::mutex> lock(buffers_mutex_);
  collected_.ignored += batch.ignored;
  try {
    if (!batch.whole) collected_.reason = "a buffer of records could not be read to its end";
    if (collected_.samples.size() + batch.samples.size() > kMostSamples) {
      collected_.reason = "more than " + std::to_string(kMostSamples) + " records in one step";
      return;
    }
    collected_.samples.insert(collected_.samples.end(), batch.samples.begin(), batch.samples.end());
  } catch (const std::bad_alloc&) {
    collected_.reason = "no memory";  // short enough to need none
  }
}

// ---- start and stop ------------------------------------------------------------------------------------------------

bool Collector::succeeded(CUptiResult result, const char* doing, std::string* reason) const {
  if (result != CUPTI_SUCCESS && reason->empty()) {
    *reason = std::string(doing) + " failed: " + describe(*library_, result);
  }
  return result == CUPTI_SUCCESS;
}

CUptiResult Collector::configure(bool on) const {
  CUpti_ActivityUnifiedMemoryCounterConfig counters[kLastCounter];
  for (unsigned i = 0; i < kLastCounter; ++i) {
    counters[i] = {CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES,
                   static_cast<CUpti_ActivityUnifiedMemoryCounterKind>(i + 1), 0, on};
  }
  return library_->configure(counters, kLastCounter);
}

std::string Collector::start(int driver_version) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_) return "another device of this process is being sampled";
  std::string reason;
  const Library* const found = library(driver_version, &reason);
  if (found == nullptr) return reason;
  {
    const std::lock_guard<std::mutex> buffers_lock(buffers_mutex_);
    library_ = found;
    collected_ = {};
  }
  reason = begin();
  running_ = reason.empty();
  return reason;
}

// Step by step; what was begun is ended where a later step fails.
std::string Collector::begin() {
  std::string reason;
  if (!succeeded(library_->subscribe(&subscriber_, nothing, nullptr), "cuptiSubscribe", &reason)) return reason;
  if (succeeded(library_->register_callbacks(requested, completed), "cuptiActivityRegisterCallbacks", &reason) &&
      succeeded(configure(true), "cuptiActivityConfigureUnifiedMemoryCounter", &reason)) {
    if (succeeded(library_->enable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER), "cuptiActivityEnable", &reason)) {
      begin_ = now();
      return {};
    }
    static_cast<void>(configure(false));
  }
  static_cast<void>(library_->unsubscribe(subscriber_));
  return reason;
}

Collected Collector::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!running_) return {};
  running_ = false;
  std::string reason;
  const Moment end = now();
  succeeded(library_->flush_all(0), "cuptiActivityFlushAll", &reason);
  succeeded(library_->disable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER), "cuptiActivityDisable", &reason);
  // Once more, now that nothing is added: what was not ready before.
  succeeded(library_->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll", &reason);
  size_t dropped = 0;
  if (succeeded(library_->get_dropped(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords", &reason) &&
      dropped > 0) {
    reason = "CUPTI dropped " + std::to_string(dropped) + " records for lack of buffers";
  }
  static_cast<void>(configure(false));
  static_cast<void>(library_->unsubscribe(subscriber_));

  Collected collected;
  {
    const std::lock_guard<std::mutex> buffers_lock(buffers_mutex_);
    collected = std::exchange(collected_, {});
  }
  if (collected.reason.empty()) collected.reason = reason;
  align(&collected.samples, begin_, end);
  std::stable_sort(collected.samples.begin(), collected.samples.end(),
                   [](const Sample& one, const Sample& other) { return one.start_ns < other.start_ns; });
  return collected;
}

// ---- clocks --------------------------------------------------------------------------------------------------------

// The closest pair of several: the thread may be put aside between the two clocks.
Collector::Moment Collector::now() const {
  Moment closest;
  int64_t least_ns = INT64_MAX;
  for (int attempt = 0; attempt < kClockAttempts; ++attempt) {
    uint64_t cupti_ns = 0;
    const int64_t before_ns = now_ns();
    if (library_->get_timestamp(&cupti_ns) != CUPTI_SUCCESS) return {};
    const int64_t took_ns = now_ns() - before_ns;
    if (took_ns >= least_ns) continue;
    least_ns = took_ns;
    closest = {true, static_cast<int64_t>(cupti_ns), before_ns + took_ns / 2};
  }
  return closest;
}

// CUPTI's clock is the wall's on Linux, which may be adjusted: a line through both ends, or, where these are too close
// for one, their distance; that at the end where the clock was set back in between. Where it was not told times are 0.
void Collector::align(std::vector<Sample>* samples, const Moment& begin, const Moment& end) {
  const bool line = begin.known && end.known && end.cupti_ns - begin.cupti_ns >= kShortestLineNs;
  const Moment& origin = line || !end.known ? begin : end;
  const double slope = line ? static_cast<double>(end.monotonic_ns - begin.monotonic_ns) /
                                  static_cast<double>(end.cupti_ns - begin.cupti_ns)
                            : 1.0;
  const auto aligned = [&](int64_t cupti_ns) -> int64_t {
    const int64_t distance_ns = cupti_ns - origin.cupti_ns;
    if (!origin.known || cupti_ns == 0 || distance_ns > kMostDistanceNs || distance_ns < -kMostDistanceNs) return 0;
    return origin.monotonic_ns + static_cast<int64_t>(static_cast<double>(distance_ns) * slope);
  };
  for (Sample& sample : *samples) {
    sample.start_ns = aligned(sample.start_ns);
    sample.end_ns = aligned(sample.end_ns);
  }
}

}  // namespace um::cupti
