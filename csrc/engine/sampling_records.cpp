// Attributes CUPTI's records of a sampled step to ops and allocations, and derives counters and events from them.
#include <algorithm>
#include <iterator>

#include "engine/device_base.h"
#include "engine/sampling.h"

namespace um {
namespace {

using namespace cupti;  // NOLINT(google-build-using-namespace): CUPTI's own names

// CUPTI converts the device's times to the host's, with an error of some microseconds.
constexpr int64_t kSlackNs = 1000000;
// A larger value in a record is nonsense.
constexpr uint64_t kMostBytes = uint64_t{1} << 48;

// Returns UM_UNKNOWN for an unknown cause. CUPTI counts the causes as um_cause does, but from 1 on: cupti_activity.h,
// CUpti_ActivityUnifiedMemoryMigrationCause.
int cause_of_migration(uint32_t flags) {
  static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER == UM_CAUSE_USER + 1);
  static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_ACCESS_COUNTERS == UM_CAUSE_ACCESS_COUNTER + 1);
  return flags >= 1 && flags <= UM_CAUSE_COUNT ? static_cast<int>(flags) - 1 : UM_UNKNOWN;
}

// Returns the nearest um_cause. um_sampling counts the driver's own causes.
um_cause cause_of_remote_map(uint32_t flags) {
  switch (flags) {
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_POLICY:
      return UM_CAUSE_USER;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_OUT_OF_MEMORY:
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_EVICTION:
      return UM_CAUSE_EVICTION;
    default:
      return UM_CAUSE_COHERENCE;
  }
}

int64_t duration_ns(const Sample& sample) {
  return sample.start_ns != 0 && sample.end_ns > sample.start_ns ? sample.end_ns - sample.start_ns : 0;
}

bool is_fault(const Sample& sample) { return sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT; }

}  // namespace

// ---- from records to what they are about -------------------------------------------------------------------------

std::vector<Sampling::Attributed> Sampling::tell(const std::vector<Sample>& samples, int64_t end_ns) {
  std::vector<Attributed> all;
  all.reserve(samples.size());
  for (const Sample& sample : samples) {
    Attributed attributed;
    attributed.sample = sample;
    const bool timed = sample.start_ns != 0;
    const bool late = timed && (sample.start_ns < start_ns_ - kSlackNs || sample.start_ns > end_ns + kSlackNs);
    const OpIdentity* const op = timed ? timeline_.running(sample.start_ns) : nullptr;
    const Departure* const departure = timed && op == nullptr ? departure_at(sample.start_ns) : nullptr;
    attributed.op = op != nullptr ? *op : departure != nullptr ? departure->op : OpIdentity{step_};
    const bool host_fault = sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT;
    const bool nonsense =
        !host_fault && sample.value > kMostBytes;  // for a fault of the host it is the program counter
    if (late || nonsense || !place(&attributed, timed ? timeline_.reached(sample.start_ns) : UINT32_MAX)) {
      ++read_.ignored_records;
      continue;
    }
    all.push_back(attributed);
  }
  share_service(&all);
  share_departures(&all);
  return all;
}

// Finds the allocation that lay at the address when the device had reached that op. Returns false if the memory is not
// the device's.
bool Sampling::place(Attributed* attributed, uint32_t reached) const {
  const uint64_t at = attributed->sample.address;
  if (const BlockHistory::Life* life = history_.containing(at, reached)) {
    attributed->record = &life->record;
    return true;
  }
  const Arena* const arena = base_.own_arena(at);
  if (arena == nullptr && !history_.knows(at)) return false;
  const Block* block = arena != nullptr ? arena->containing(at) : nullptr;
  if (block == nullptr) {  // a page may begin between blocks: then the first block above is meant
    const BlockHistory::Life* life = history_.nearest(at, reached);
    block = arena != nullptr ? arena->nearest(at) : nullptr;
    if (life != nullptr && (block == nullptr || life->address <= block->address)) {
      attributed->record = &life->record;
      return true;
    }
  }
  if (block != nullptr) attributed->record = &block->record;
  return true;
}

// Fault groups of one batch share the batch's time window, and windows may overlap. The part of a window that is not
// covered yet is divided evenly, so that the sum is the time in which any fault was served.
void Sampling::share_service(std::vector<Attributed>* all) {
  std::vector<Attributed*> faults;
  for (Attributed& attributed : *all) {
    if (is_fault(attributed.sample) && duration_ns(attributed.sample) > 0) faults.push_back(&attributed);
  }
  std::sort(faults.begin(), faults.end(), [](const Attributed* one, const Attributed* other) {
    const Sample &a = one->sample, &b = other->sample;
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns < b.end_ns;
  });
  int64_t covered_ns = INT64_MIN;
  for (size_t first = 0; first < faults.size();) {
    const Sample& window = faults[first]->sample;
    size_t end = first;
    while (end < faults.size() && faults[end]->sample.start_ns == window.start_ns &&
           faults[end]->sample.end_ns == window.end_ns) {
      ++end;
    }
    const int64_t count = static_cast<int64_t>(end - first);
    const int64_t left_ns = std::max<int64_t>(0, window.end_ns - std::max(window.start_ns, covered_ns));
    covered_ns = std::max(covered_ns, window.end_ns);
    for (int64_t i = 0; i < count; ++i) {
      faults[first + static_cast<size_t>(i)]->service_ns = left_ns / count + (i < left_ns % count ? 1 : 0);
    }
    first = end;
  }
}

// Divides the time for which an op stalled evenly among the pages that were evicted and copied then.
void Sampling::share_departures(std::vector<Attributed>* all) {
  for (Attributed& attributed : *all) {
    const Sample& sample = attributed.sample;
    const bool asked = sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH &&
                       sample.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER;
    Departure* const departure = asked && sample.start_ns != 0 ? departure_at(sample.start_ns) : nullptr;
    if (departure == nullptr) continue;
    std::vector<Attributed*>& pages = departure->pages;
    attributed.leaves = pages.empty() || pages.back()->sample.address / kBlockBytes != sample.address / kBlockBytes;
    if (attributed.leaves) pages.push_back(&attributed);
  }
  for (const Departure& each : departures_) {
    const int64_t took_ns = each.end_ns - each.begin_ns, count = static_cast<int64_t>(each.pages.size());
    for (int64_t i = 0; i < count; ++i)
      each.pages[static_cast<size_t>(i)]->service_ns = took_ns / count + (i < took_ns % count ? 1 : 0);
  }
}

// ---- from there to counters and events ---------------------------------------------------------------------------

um_event Sampling::event_of(const Attributed& attributed, um_event_kind kind, um_cause cause) {
  um_event event{};
  event.start_ns = attributed.sample.start_ns;
  event.address = attributed.sample.address;
  event.kind = static_cast<uint16_t>(kind);
  event.cause = static_cast<uint16_t>(cause);
  tell_of(attributed.op, &event);
  if (attributed.record != nullptr) tell_of(*attributed.record, &event);
  return event;
}

void Sampling::account(const Attributed& attributed, EventLog* events) {
  const Sample& sample = attributed.sample;
  const int64_t value = static_cast<int64_t>(sample.value);
  switch (sample.kind) {
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD:
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH:
      return transfer(attributed, sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD,
                      events);
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT:
      ++read_.host_faults;
      return;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT: {
      ++read_.last.fault_groups;
      read_.last.fault_service_ns += attributed.service_ns;
      read_.page_faults += value;
      um_event event = event_of(attributed, UM_EVENT_FAULT_GROUP, UM_CAUSE_COHERENCE);
      event.duration_ns = attributed.service_ns;
      event.write = sample.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_WRITE ||
                    sample.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_ATOMIC;
      if (events != nullptr) events->push(event);
      return;
    }
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING:
      read_.thrashing_bytes += value;
      return;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING:
      ++read_.throttles;
      read_.throttled_ns += duration_ns(sample);
      return;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP: {
      constexpr uint32_t known = std::size(um_sampling{}.remote_maps_by_cause);
      ++read_.last.remote_maps;
      ++read_.remote_maps_by_cause[sample.flags < known ? sample.flags : 0];
      read_.remote_map_bytes += value;
      um_event event = event_of(attributed, UM_EVENT_REMOTE_MAP, cause_of_remote_map(sample.flags));
      event.bytes = sample.value;
      if (events != nullptr) events->push(event);
      return;
    }
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD:  // between GPUs, which this project does not
                                                                          // use
      return;
  }
}

// The driver evicts 2 MiB at once, and records each run of pages in them, so consecutive records of a page are one
// eviction.
void Sampling::transfer(const Attributed& attributed, bool to_device, EventLog* events) {
  const Sample& sample = attributed.sample;
  const int cause = cause_of_migration(sample.flags);
  if (cause == UM_UNKNOWN) {
    read_.unknown_cause_bytes += static_cast<int64_t>(sample.value);
    return;
  }
  (to_device ? read_.last.bytes_h2d : read_.last.bytes_d2h)[cause] += static_cast<int64_t>(sample.value);
  um_event event =
      event_of(attributed, to_device ? UM_EVENT_TRANSFER_H2D : UM_EVENT_TRANSFER_D2H, static_cast<um_cause>(cause));
  event.duration_ns = duration_ns(sample);
  event.bytes = sample.value;
  if (events != nullptr) events->push(event);
  if (to_device || (cause != UM_CAUSE_EVICTION && !attributed.leaves)) return;
  const uint64_t page = sample.address / kBlockBytes;
  if (page == evicted_page_ && !attributed.leaves) return;
  evicted_page_ = page;
  ++read_.last.evictions;
  event.kind = UM_EVENT_EVICTION;
  event.duration_ns = attributed.service_ns;
  if (events != nullptr) events->push(event);
}

// If a departure copied nothing, only its op is known.
void Sampling::account_departures(EventLog* events) {
  for (const Departure& each : departures_) {
    read_.last.fault_service_ns += each.end_ns - each.begin_ns;
    if (!each.pages.empty()) continue;
    Attributed attributed;
    attributed.sample.start_ns = each.begin_ns;
    attributed.op = each.op;
    um_event event = event_of(attributed, UM_EVENT_EVICTION, UM_CAUSE_USER);
    event.duration_ns = each.end_ns - each.begin_ns;
    if (events != nullptr) events->push(event);
  }
}

}  // namespace um
