#include "engine/sampling.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "base/clock.h"
#include "base/error.h"
#include "engine/counters.h"
#include "engine/device.h"

namespace um {
namespace {

using namespace cupti;  // NOLINT(google-build-using-namespace): CUPTI's own names
using driver::CUDA_SUCCESS;

// The first steps of a run are another matter than the later ones, and a short run should be seen too.
constexpr uint32_t kFirstSteps = 3;
// CUPTI converts the device's times to the host's, not to the microsecond.
constexpr int64_t kSlackNs = 1000000;
// No record is about more: a record that says so is nonsense.
constexpr uint64_t kMostBytes = uint64_t{1} << 48;

// UM_UNKNOWN for what is not known. CUPTI counts the causes as um_cause does, but from 1 on: cupti_activity.h,
// CUpti_ActivityUnifiedMemoryMigrationCause.
int cause_of_migration(uint32_t flags) {
  static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER == UM_CAUSE_USER + 1);
  static_assert(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_ACCESS_COUNTERS == UM_CAUSE_ACCESS_COUNTER + 1);
  return flags >= 1 && flags <= UM_CAUSE_COUNT ? static_cast<int>(flags) - 1 : UM_UNKNOWN;
}

// The nearest of um_cause's words; um_sampling counts by the driver's own.
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

um_time time_of_wait(const um_event& event) {
  if (event.kind == UM_EVENT_WAIT_ROOM) return UM_TIME_ROOM;
  return event.cause == UM_SWAP_ON_DEMAND ? UM_TIME_ON_DEMAND : UM_TIME_SWAP_IN;
}

int64_t duration_ns(const Sample& sample) {
  return sample.start_ns != 0 && sample.end_ns > sample.start_ns ? sample.end_ns - sample.start_ns : 0;
}

bool is_fault(const Sample& sample) { return sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT; }

// 0 where records tell, UM_UNKNOWN elsewhere.
void clear(um_counters* counters) {
  forget(counters);
  counters->fault_groups = counters->unordered_faults = counters->evictions = counters->remote_maps = 0;
  counters->fault_service_ns = 0;
  std::fill_n(counters->bytes_h2d, UM_CAUSE_COUNT, 0);
  std::fill_n(counters->bytes_d2h, UM_CAUSE_COUNT, 0);
}

}  // namespace

Sampling::Sampling(um_device& device)
    : Participant(device, kSampleTurns), backend_(device.backend), timeline_(device.backend) {
  clear(&totals_);
  forget(&read_.last);
  forget(&read_.last_times);
}

void Sampling::close() noexcept {
  if (collecting_) static_cast<void>(Collector::of_process().stop());
  running_ = collecting_ = false;
  timeline_.destroy();
}

void Sampling::set_every(uint32_t every) {
  if (backend_.hooks->exact)
    throw Error(UM_UNSUPPORTED, "the emulated device counts every step exactly: there is nothing to sample");
  device_.guard.join(*this);
  read_.every = every;
}

bool Sampling::is_due(uint32_t step) const {
  const bool told = step <= kFirstSteps || step % std::max<uint32_t>(read_.every, 1) == 0 || device_.recording.on();
  return read_.every != 0 && step != 0 && told;
}

void Sampling::approach() noexcept {
  if (read_.every != 0 && device_.guard.step() == 0) device_.times.log(device_.times.read_ns());
}

void Sampling::fail(const std::string& reason) {
  ++read_.failed_steps;
  std::snprintf(read_.reason, sizeof(read_.reason), "%s", reason.c_str());
}

// Without any nothing faults, and CUPTI is left alone until some is expected.
bool Sampling::has_managed() const {
  const std::vector<const Arena*> arenas = device_.allocations->arenas_by_address();
  return std::any_of(arenas.begin(), arenas.end(),
                     [](const Arena* arena) { return arena->heap->placement.memory == UM_MEMORY_MANAGED; });
}

void Sampling::begin_step(uint32_t step) {
  const RequiredContext current(backend_);
  if (step != 0) ran_.clear();
  if (!is_due(step)) return device_.times.end_log();
  if (!device_.times.logs()) device_.times.log(backend_.now_ns());
  // What earlier steps gave to the device is not this one's.
  if (const driver::CUresult result = finish_device(Wait::sample_begins); result != CUDA_SUCCESS) {
    return fail("waiting for the device failed: CUDA error " + std::to_string(result));
  }
  running_ = true;
  step_ = step;
  op_index_ = 0;
  history_.clear();
  if (has_managed()) expect_faults();
  if (!running_) return;
  timeline_.start();
  departures_.clear();
  stood_.clear();
  follow_stalls(true);
  start_ns_ = now_ns();
}

void Sampling::expect_faults() {
  const std::string reason = Collector::of_process().start(backend_.driver_version);
  running_ = collecting_ = reason.empty();
  if (collecting_) return;
  follow_stalls(false);
  fail(reason);
}

// What CUPTI tells of the step; nothing where nothing could fault.
Collected Sampling::collect() {
  if (!collecting_) return {};
  collecting_ = false;
  return Collector::of_process().stop();
}

void Sampling::end_step() {
  if (!running_) return;
  const RequiredContext current(backend_);
  running_ = false;
  const driver::CUresult result = finish_device(Wait::sample_ends);
  const int64_t end_ns = now_ns();
  timeline_.settle();
  settle_departures();
  follow_stalls(false);
  const Collected collected = collect();
  read_.ignored_records += collected.ignored;
  if (result != CUDA_SUCCESS) {
    fail("waiting for the device failed: CUDA error " + std::to_string(result));
  } else if (!collected.reason.empty()) {
    fail(collected.reason);
  } else {
    const std::vector<Told> all = tell(collected.samples, end_ns);
    read_.reason[0] = '\0';
    read_.last_step = step_;
    read_.last_start_ns = start_ns_;
    read_.last_end_ns = end_ns;
    read_.duration_ns += end_ns - start_ns_;
    ++read_.steps;
    clear(&read_.last);
    spend(all);
    evicted_page_ = ~uint64_t{0};
    for (const Told& told : all) account(told, device_.observation.wanted());
    account_departures(device_.observation.wanted());
    add_last();
  }
  history_.clear();
}

void Sampling::expect_managed() {
  if (!running_ || collecting_) return;
  const RequiredContext current(backend_);
  expect_faults();
}

void Sampling::begin_op(RunningOp& op) {
  if (!running_) return;
  op_index_ = op.identity.index;
  const CurrentContext current(backend_);
  op.sampled = timeline_.begin(op.identity, op.stream);
}

void Sampling::end_op(RunningOp& op) noexcept {
  if (op.sampled == 0 || !running_) return;
  const CurrentContext current(backend_);
  timeline_.end(op.sampled, op.stream);
}

void Sampling::freed(Block* block) noexcept {
  if (running_) history_.freed(*block, op_index_);
}

// ---- what the time went into ----------------------------------------------------------------------------------------

// Of the steps before it stalls have been counted when one begins.
void Sampling::follow_stalls(bool on) {
  if (!device_.swapping.has_chunks()) return;
  Stalls& stalls = device_.swapping.mover().waits.stalls;
  stalls.settle();
  stalls.timed = nullptr;
  if (!on) return;
  stalls.timed = [this](driver::CUevent begin, um_event* what) {
    if (timeline_.time_of(begin, &what->start_ns))
      stood_.push_back({what->start_ns, what->start_ns + what->duration_ns, time_of_wait(*what)});
  };
}

// Where that fails, nobody knows what the stream stood still for.
void Sampling::note(const Departure& departure) noexcept {
  if (departure.end == nullptr) return;
  try {
    departures_.push_back(departure);
    departures_.back().op.step = step_;  // of no op, perhaps
  } catch (const std::bad_alloc&) {
    return;
  }
}

void Sampling::settle_departures() {
  const auto unknown = [this](Departure& each) {
    return !timeline_.time_of(each.begin, &each.begin_ns) || !timeline_.time_of(each.end, &each.end_ns);
  };
  departures_.erase(std::remove_if(departures_.begin(), departures_.end(), unknown), departures_.end());
  std::sort(departures_.begin(), departures_.end(),
            [](const Departure& one, const Departure& other) { return one.begin_ns < other.begin_ns; });
}

// The one that an op stood still for then; nullptr: none.
Sampling::Departure* Sampling::departure_at(int64_t ns) {
  const auto after = std::upper_bound(departures_.begin(), departures_.end(), ns,
                                      [](int64_t at_ns, const Departure& each) { return at_ns < each.begin_ns; });
  return after != departures_.begin() && std::prev(after)->end_ns >= ns ? &*std::prev(after) : nullptr;
}

// What an op stood still for is shared out evenly among the pages that left, as far as they were copied.
void Sampling::share_departures(std::vector<Told>* all) {
  for (Told& told : *all) {
    const Sample& sample = told.sample;
    const bool asked = sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH &&
                       sample.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER;
    Departure* const departure = asked && sample.start_ns != 0 ? departure_at(sample.start_ns) : nullptr;
    if (departure == nullptr) continue;
    std::vector<Told*>& pages = departure->pages;
    told.leaves = pages.empty() || pages.back()->sample.address / kBlockBytes != sample.address / kBlockBytes;
    if (told.leaves) pages.push_back(&told);
  }
  for (const Departure& each : departures_) {
    const int64_t took_ns = each.end_ns - each.begin_ns, count = static_cast<int64_t>(each.pages.size());
    for (int64_t i = 0; i < count; ++i)
      each.pages[static_cast<size_t>(i)]->service_ns = took_ns / count + (i < took_ns % count ? 1 : 0);
  }
}

void Sampling::spend(const std::vector<Told>& all) {
  forget(&read_.last_times);
  if (!device_.times.logs()) return;
  std::vector<Sample> samples;
  samples.reserve(all.size());
  for (const Told& told : all) samples.push_back(told.sample);
  std::vector<Stretch> stood = stood_for_faults(samples);
  stood.insert(stood.end(), stood_.begin(), stood_.end());
  for (const Departure& each : departures_) stood.push_back({each.begin_ns, each.end_ns, UM_TIME_FAULT_ROOM});
  const std::vector<OpTimeline::Op>& ops = timeline_.ops();
  const StepTimes found =
      times_of_step(device_.times.logged(), ops, stood, copies_asked_for(samples), read_.last_end_ns);
  read_.last_times = found.all;
  ran_ = ran_by_op(ops, found.compute_ns);
}

// ---- from records to what they are about -------------------------------------------------------------------------

std::vector<Sampling::Told> Sampling::tell(const std::vector<Sample>& samples, int64_t end_ns) {
  std::vector<Told> all;
  all.reserve(samples.size());
  for (const Sample& sample : samples) {
    Told told;
    told.sample = sample;
    const bool timed = sample.start_ns != 0;
    const bool late = timed && (sample.start_ns < start_ns_ - kSlackNs || sample.start_ns > end_ns + kSlackNs);
    const OpIdentity* const op = timed ? timeline_.running(sample.start_ns) : nullptr;
    const Departure* const departure = timed && op == nullptr ? departure_at(sample.start_ns) : nullptr;
    told.op = op != nullptr ? *op : departure != nullptr ? departure->op : OpIdentity{step_};
    const bool host_fault = sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT;
    const bool nonsense = !host_fault && sample.value > kMostBytes;  // of a host's fault it is the program counter
    if (late || nonsense || !place(&told, timed ? timeline_.reached(sample.start_ns) : UINT32_MAX)) {
      ++read_.ignored_records;
      continue;
    }
    all.push_back(told);
  }
  share_service(&all);
  share_departures(&all);
  return all;
}

// Who lay at the address when the device had reached that op. False for memory that is not the device's.
bool Sampling::place(Told* told, uint32_t reached) const {
  const uint64_t at = told->sample.address;
  if (const BlockHistory::Life* life = history_.containing(at, reached)) {
    told->record = &life->record;
    return true;
  }
  const Arena* const arena = device_.own_arena(at);
  if (arena == nullptr && !history_.knows(at)) return false;
  const Block* block = arena != nullptr ? arena->containing(at) : nullptr;
  if (block == nullptr) {  // pages are coarser than blocks: it is about the first one in them
    const BlockHistory::Life* life = history_.nearest(at, reached);
    block = arena != nullptr ? arena->nearest(at) : nullptr;
    if (life != nullptr && (block == nullptr || life->address <= block->address)) {
      told->record = &life->record;
      return true;
    }
  }
  if (block != nullptr) told->record = &block->record;
  return true;
}

// The groups of one batch of the driver's share its window, and windows may overlap: what of a window is not covered
// yet is shared out evenly, so that the sum is the time in which anything was serviced.
void Sampling::share_service(std::vector<Told>* all) {
  std::vector<Told*> faults;
  for (Told& told : *all) {
    if (is_fault(told.sample) && duration_ns(told.sample) > 0) faults.push_back(&told);
  }
  std::sort(faults.begin(), faults.end(), [](const Told* one, const Told* other) {
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

// ---- from there to counters and events ---------------------------------------------------------------------------

um_event Sampling::event_of(const Told& told, um_event_kind kind, um_cause cause) {
  um_event event{};
  event.start_ns = told.sample.start_ns;
  event.address = told.sample.address;
  event.kind = static_cast<uint16_t>(kind);
  event.cause = static_cast<uint16_t>(cause);
  tell_of(told.op, &event);
  if (told.record != nullptr) tell_of(*told.record, &event);
  return event;
}

void Sampling::account(const Told& told, EventLog* events) {
  const Sample& sample = told.sample;
  const int64_t value = static_cast<int64_t>(sample.value);
  switch (sample.kind) {
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD:
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH:
      return transfer(told, sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD, events);
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT:
      ++read_.host_faults;
      return;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT: {
      ++read_.last.fault_groups;
      read_.last.fault_service_ns += told.service_ns;
      read_.page_faults += value;
      um_event event = event_of(told, UM_EVENT_FAULT_GROUP, UM_CAUSE_COHERENCE);
      event.duration_ns = told.service_ns;
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
      um_event event = event_of(told, UM_EVENT_REMOTE_MAP, cause_of_remote_map(sample.flags));
      event.bytes = sample.value;
      if (events != nullptr) events->push(event);
      return;
    }
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD:  // between GPUs: nobody asked for these
      return;
  }
}

// The driver evicts whole 2 MiB, and tells of each run of pages in them: one after the other is one eviction.
void Sampling::transfer(const Told& told, bool to_device, EventLog* events) {
  const Sample& sample = told.sample;
  const int cause = cause_of_migration(sample.flags);
  if (cause == UM_UNKNOWN) {
    read_.unknown_cause_bytes += static_cast<int64_t>(sample.value);
    return;
  }
  (to_device ? read_.last.bytes_h2d : read_.last.bytes_d2h)[cause] += static_cast<int64_t>(sample.value);
  um_event event =
      event_of(told, to_device ? UM_EVENT_TRANSFER_H2D : UM_EVENT_TRANSFER_D2H, static_cast<um_cause>(cause));
  event.duration_ns = duration_ns(sample);
  event.bytes = sample.value;
  if (events != nullptr) events->push(event);
  if (to_device || (cause != UM_CAUSE_EVICTION && !told.leaves)) return;
  const uint64_t page = sample.address / kBlockBytes;
  if (page == evicted_page_ && !told.leaves) return;
  evicted_page_ = page;
  ++read_.last.evictions;
  event.kind = UM_EVENT_EVICTION;
  event.duration_ns = told.service_ns;
  if (events != nullptr) events->push(event);
}

// Of those that copied nothing it is only known for which op they were.
void Sampling::account_departures(EventLog* events) {
  for (const Departure& each : departures_) {
    read_.last.fault_service_ns += each.end_ns - each.begin_ns;
    if (!each.pages.empty()) continue;
    Told told;
    told.sample.start_ns = each.begin_ns;
    told.op = each.op;
    um_event event = event_of(told, UM_EVENT_EVICTION, UM_CAUSE_USER);
    event.duration_ns = each.end_ns - each.begin_ns;
    if (events != nullptr) events->push(event);
  }
}

void Sampling::add_last() {
  auto* const totals = reinterpret_cast<int64_t*>(&totals_);
  const auto* const last = reinterpret_cast<const int64_t*>(&read_.last);
  for (size_t i = 0; i < kCounters; ++i) {
    if (last[i] != UM_UNKNOWN) totals[i] += last[i];
  }
}

void Sampling::tell(um_counters* out) const {
  if (read_.steps == 0) return;
  *out = totals_;
  device_.guard.tell(out);
}

}  // namespace um
