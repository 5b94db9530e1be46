#include "engine/sampling.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "base/clock.h"
#include "base/error.h"
#include "engine/counters.h"
#include "engine/device_base.h"

namespace um {
namespace {

using namespace cupti;  // NOLINT(google-build-using-namespace): CUPTI's own names
using driver::CUDA_SUCCESS;

// The first steps are always sampled, because they differ from later ones, and a run may be short.
constexpr uint32_t kFirstSteps = 3;
um_time time_of_wait(const um_event& event) {
  if (event.kind == UM_EVENT_WAIT_ROOM) return UM_TIME_ROOM;
  return event.cause == UM_SWAP_ON_DEMAND ? UM_TIME_ON_DEMAND : UM_TIME_SWAP_IN;
}

// Sets the counters that records provide to 0, and the others to UM_UNKNOWN.
void clear(um_counters* counters) {
  forget(counters);
  counters->fault_groups = counters->unordered_faults = counters->evictions = counters->remote_maps = 0;
  counters->fault_service_ns = 0;
  std::fill_n(counters->bytes_h2d, UM_CAUSE_COUNT, 0);
  std::fill_n(counters->bytes_d2h, UM_CAUSE_COUNT, 0);
}

}  // namespace

Sampling::Sampling(DeviceBase& base, EventLog& log, const SwapEvents& swaps, Times& times, const Tape& tape)
    : Participant(base, kSampleTurns),
      backend_(base.backend),
      log_(log),
      swaps_(swaps),
      times_(times),
      tape_(tape),
      timeline_(base.backend) {
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
  base_.participants.join(*this);
  read_.every = every;
}

bool Sampling::is_due(uint32_t step) const {
  const bool wanted = step <= kFirstSteps || step % std::max<uint32_t>(read_.every, 1) == 0 || tape_.on();
  return read_.every != 0 && step != 0 && wanted;
}

void Sampling::approach() noexcept {
  if (read_.every != 0 && base_.ops.step == 0) times_.log(times_.read_ns());
}

void Sampling::fail(const std::string& reason) {
  ++read_.failed_steps;
  std::snprintf(read_.reason, sizeof(read_.reason), "%s", reason.c_str());
}

// Without managed memory nothing faults, and CUPTI is not started.
bool Sampling::has_managed() const {
  const std::vector<const Arena*> arenas = base_.allocations->arenas_by_address();
  return std::any_of(arenas.begin(), arenas.end(),
                     [](const Arena* arena) { return arena->heap->placement.memory == UM_MEMORY_MANAGED; });
}

void Sampling::begin_step(uint32_t step) {
  const RequiredContext current(backend_);
  if (step != 0) ran_.clear();
  if (!is_due(step)) return times_.end_log();
  if (!times_.logs()) times_.log(backend_.now_ns());
  // Work of earlier steps must not run in this one.
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

// Returns CUPTI's records of the step; none if it was not started.
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
    const std::vector<Attributed> all = tell(collected.samples, end_ns);
    read_.reason[0] = '\0';
    read_.last_step = step_;
    read_.last_start_ns = start_ns_;
    read_.last_end_ns = end_ns;
    read_.duration_ns += end_ns - start_ns_;
    ++read_.steps;
    clear(&read_.last);
    spend(all);
    evicted_page_ = ~uint64_t{0};
    EventLog* const events = swaps_.on ? &log_ : nullptr;
    for (const Attributed& attributed : all) account(attributed, events);
    account_departures(events);
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

// Stalls of earlier steps are settled first, so that they are not counted in this step.
void Sampling::follow_stalls(bool on) {
  if (stalls == nullptr) return;
  stalls->settle();
  stalls->timed = nullptr;
  if (!on) return;
  stalls->timed = [this](driver::CUevent begin, um_event* what) {
    if (timeline_.time_of(begin, &what->start_ns))
      stood_.push_back({what->start_ns, what->start_ns + what->duration_ns, time_of_wait(*what)});
  };
}

// If memory is short, the stall remains unexplained.
void Sampling::note(const Departure& departure) noexcept {
  if (departure.end == nullptr) return;
  try {
    departures_.push_back(departure);
    departures_.back().op.step = step_;  // also if there is no op
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

// Returns the departure for which an op stalled at that time; nullptr: there was none.
Sampling::Departure* Sampling::departure_at(int64_t ns) {
  const auto after = std::upper_bound(departures_.begin(), departures_.end(), ns,
                                      [](int64_t at_ns, const Departure& each) { return at_ns < each.begin_ns; });
  return after != departures_.begin() && std::prev(after)->end_ns >= ns ? &*std::prev(after) : nullptr;
}

void Sampling::spend(const std::vector<Attributed>& all) {
  forget(&read_.last_times);
  if (!times_.logs()) return;
  std::vector<Sample> samples;
  samples.reserve(all.size());
  for (const Attributed& attributed : all) samples.push_back(attributed.sample);
  std::vector<Stretch> stood = stood_for_faults(samples);
  stood.insert(stood.end(), stood_.begin(), stood_.end());
  for (const Departure& each : departures_) stood.push_back({each.begin_ns, each.end_ns, UM_TIME_FAULT_ROOM});
  const std::vector<OpTimeline::Op>& ops = timeline_.ops();
  const StepTimes found = times_of_step(times_.logged(), ops, stood, copies_asked_for(samples), read_.last_end_ns);
  read_.last_times = found.all;
  ran_ = ran_by_op(ops, found.compute_ns);
}

// ---- counters -------------------------------------------------------------------------------------------------------

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
  base_.ops.tell(out);
}

}  // namespace um
