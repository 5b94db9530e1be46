#include "replay/unified_replay.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "devices/simulated/device.h"
#include "engine/doors.h"
#include "engine/owners.h"
#include "memory/migration.h"
#include "replay/unified_input.h"

namespace um::simulator {
namespace {

// Counters only grow: what happened since `before`.
um_counters since(const um_counters& now, const um_counters& before) {
  um_counters difference = now;
  auto* fields = reinterpret_cast<int64_t*>(&difference);
  const auto* earlier = reinterpret_cast<const int64_t*>(&before);
  for (size_t i = 0; i < sizeof(um_counters) / sizeof(int64_t); ++i) fields[i] -= earlier[i];
  return difference;
}

}  // namespace

Replay::Replay(const um_trace& trace, const um_plan* plan, const um_unified_options& options)
    : trace_(trace),
      index_(trace),
      plan_(plan),
      options_(options),
      clock_(options.link, options.costs, options.launch_ns),
      shapes_(options.costs.batch_max),
      addresses_(trace.storage_count),
      places_(trace.storage_count),
      cached_(options.caching != 0 ? trace.storage_count : 0),
      continued_(trace.storage_count) {
  check(options, trace.storage_count);
  check(trace, options.iterations);
  if (plan != nullptr) plan_rows_ = checked_in_order(*plan, trace);
  um_emulated_options device{};
  device.capacity_bytes = options.capacity_bytes;
  device.host_bytes = options.host_bytes;
  device.counting = options.service == UM_SERVICE_GUARD ? UM_COUNTING_ORDERED : UM_COUNTING_RAW;
  const Backend backend = Backend::open_simulated(device);
  space_ = &space_of(backend.ordinal);
  device_ = um_device::open_owned(backend, process_owners());
  space_->migrator.clock = &clock_;
  space_->migrator.lane = lane();
}

Replay::~Replay() {
  if (device_ == nullptr) return;
  device_->end_op(nullptr, 0);  // after an error inside an op
  space_->migrator.clock = nullptr;
  for (size_t storage = 0; storage < addresses_.size(); ++storage) free(static_cast<int32_t>(storage));
  for (auto& cache : caches_) cache.reset();
  try {
    device_->close();
  } catch (const Error& error) {
    static_cast<void>(error);  // it is no driver that could refuse
  }
}

// ---- the run --------------------------------------------------------------------------------------------------------

um_simulation Replay::run() {
  um_simulation out;
  out.steps.reserve(options_.iterations + uint64_t{1});
  if (options_.budget_bytes != 0) device_->alive()->budget.set(options_.budget_bytes);
  device_->alive()->accounts.read(&counters_);
  for (uint32_t iteration = 1; iteration <= options_.iterations; ++iteration) {
    clock_.begin_step(iteration == 1 ? 0 : iteration);
    events(-1, false);
    if (iteration == 1) close_step(out);
    clock_.begin_step(iteration);
    device_->alive()->guard.set_step(iteration);
    run_iteration();
    close_step(out);
    out.addresses = places_;
    hand_over();
  }
  out.spans = clock_.take_spans();
  return out;
}

void Replay::run_iteration() {
  next_row_ = 0;
  for (int32_t op = 0; op < index_.op_count(); ++op) {
    try {
      run_op(op);
    } catch (const Error& error) {
      throw Error(error.status(), "at op " + std::to_string(op) + " of the trace: " + error.what());
    }
  }
}

void Replay::run_op(int32_t op) {
  actions(op, false);
  begin(op);
  events(op, true);
  note_uses(op);
  device_->end_op(outputs_.data(), static_cast<uint32_t>(outputs_.size()));
  const auto row = static_cast<size_t>(op);
  clock_.end_op(std::max<int64_t>(trace_.op_duration_ns[row], 0), trace_.op_host_touch[row] != 0);
  actions(op, true);
  events(op, false);
}

um_concurrency Replay::concurrency(int32_t op) const {
  const auto row = static_cast<size_t>(op);
  const auto or_default = [](int32_t value, int32_t otherwise) { return value > 0 ? value : otherwise; };
  return {or_default(trace_.op_window_pages[row], options_.concurrency.window_pages),
          or_default(trace_.op_run_pages[row], options_.concurrency.run_pages),
          or_default(trace_.op_faults_per_service[row], options_.concurrency.faults_per_service)};
}

// The guard is told what is there before the op runs; what the op makes itself it touches as it is made.
void Replay::begin(int32_t op) {
  clock_.begin_op(op, shapes_.of(concurrency(op)));
  accesses_.clear();
  for (uint64_t row = index_.first_access(op); row < index_.first_access(op + 1); ++row) {
    const int32_t storage = trace_.access_storage[row];
    if (!lives(storage)) continue;
    const uint64_t at = address(storage) + static_cast<uint64_t>(trace_.access_offset_bytes[row]);
    um_access access{};
    access.address = reinterpret_cast<const void*>(at);
    access.bytes = static_cast<uint64_t>(trace_.access_bytes[row]);
    access.write = (trace_.access_flags[row] & kWrite) != 0;
    accesses_.push_back(access);
  }
  if (options_.caching != 0) make_cached(op);
  device_->begin_op(0, trace_.op_phase[op], 0, trace_.op_creates[op] != 0, accesses_.data(),
                    static_cast<uint32_t>(accesses_.size()));
}

// Blocks of a cache are no allocations of the engine, so that it has to be told of them before the op begins.
void Replay::make_cached(int32_t op) {
  for (uint64_t row = index_.first_event(op); row < index_.first_event(op + 1); ++row) {
    if (trace_.event_inside[row] == 0 || trace_.event_kind[row] > kFree) continue;
    event(row);
    const int32_t storage = trace_.event_storage[row];
    if (trace_.event_kind[row] != kAllocate || !lives(storage) || trace_.op_creates[op] != 0) continue;
    um_access access{};
    access.address = pointer(storage);
    access.bytes = static_cast<uint64_t>(trace_.storage_bytes[storage]);
    access.write = 1;
    accesses_.push_back(access);
  }
}

void Replay::note_uses(int32_t op) {
  outputs_.clear();
  for (uint64_t row = index_.first_access(op); row < index_.first_access(op + 1); ++row) {
    const int32_t storage = trace_.access_storage[row];
    if (!lives(storage)) continue;
    outputs_.push_back({pointer(storage), nullptr});
    space_->managed.note_use(address(storage) + static_cast<uint64_t>(trace_.access_offset_bytes[row]),
                             static_cast<uint64_t>(trace_.access_bytes[row]));
  }
}

// ---- events ---------------------------------------------------------------------------------------------------------

void Replay::events(int32_t op, bool inside) {
  for (uint64_t row = index_.first_event(op); row < index_.first_event(op + 1); ++row) {
    const bool made_before = options_.caching != 0 && inside && trace_.event_kind[row] <= kFree;
    if ((trace_.event_inside[row] != 0) == inside && !made_before) event(row);
  }
}

void Replay::event(uint64_t row) {
  const int32_t storage = trace_.event_storage[row];
  const uint8_t kind = trace_.event_kind[row];
  // What was there when the iteration began has its contents already.
  if (trace_.event_op[row] < 0 && continued_[static_cast<size_t>(storage)] != 0 && kind != kFree) return;
  clock_.name_storage(storage);
  const uint64_t at = address(storage) + static_cast<uint64_t>(trace_.event_offset_bytes[row]);
  const auto bytes = static_cast<uint64_t>(trace_.event_bytes[row]);
  switch (kind) {
    case kAllocate:
      allocate(storage);
      break;
    case kFree:
      free(storage);
      break;
    case kHostWrite:
      if (lives(storage)) um::copy_from_host(reinterpret_cast<void*>(at), nullptr, bytes);
      break;
    case kHostRead:
      if (lives(storage)) um::copy_to_host(nullptr, reinterpret_cast<const void*>(at), bytes);
      break;
    default:
      if (options_.service == UM_SERVICE_RECORDED || trace_.event_inside[row] == 0) service(row);
  }
  clock_.name_storage(-1);
}

void Replay::allocate(int32_t storage) {
  const auto row = static_cast<size_t>(storage);
  require(!lives(storage), "this is no trace: a storage is allocated twice");
  const auto bytes = static_cast<uint64_t>(trace_.storage_bytes[row]);
  if (options_.caching != 0) {
    if (bytes > 0) allocate_cached(storage);
  } else {
    addresses_[row] = reinterpret_cast<uint64_t>(device_->allocate(bytes, options_.placements[row], nullptr));
  }
  places_[row] = addresses_[row];
}

void Replay::allocate_cached(int32_t storage) {
  const auto row = static_cast<size_t>(storage);
  const auto bytes = static_cast<uint64_t>(trace_.storage_bytes[row]);
  const um_placement& placement = options_.placements[row];
  require(placement.role <= UM_ROLE_INTERMEDIATE && placement.advice < UM_ADVICE_COUNT, "there is no such placement");
  auto& cache = caches_[placement.role * UM_ADVICE_COUNT + placement.advice];
  if (cache == nullptr) cache = std::make_unique<CachingHeap>(*device_, placement);
  const CachingHeap::Piece piece = cache->allocate(bytes);
  addresses_[row] = piece.address;
  cached_[row] = {cache.get(), piece.handle};
  // Such programs advise every tensor, although its segment is advised already.
  driver::CUmem_advise advice{};
  if (driver_advice(static_cast<um_advice>(placement.advice), &advice)) {
    clock_.advise_call(options_.costs.advise_call_ns);
  } else if (placement.advice == UM_ADVICE_PREFETCH) {
    um::prefetch(pointer(storage), bytes, false, nullptr);
  }
}

void Replay::free(int32_t storage) noexcept {
  const auto row = static_cast<size_t>(storage);
  if (lives(storage) && options_.caching != 0) {
    cached_[row].heap->free(cached_[row].handle);
  } else if (lives(storage)) {
    static_cast<void>(um_device::free(pointer(storage)));
  }
  addresses_[static_cast<size_t>(storage)] = 0;
}

// The block that holds the offset, which may be below the storage.
void Replay::service(uint64_t row) {
  const int32_t storage = trace_.event_storage[row];
  const int64_t offset_bytes = trace_.event_offset_bytes[row];
  const bool write = trace_.event_kind[row] == kServiceWrite;
  if (!lives(storage) || offset_bytes >= trace_.storage_bytes[storage] ||
      offset_bytes < -static_cast<int64_t>(kBlockBytes))
    return;
  const uint64_t at = address(storage) + static_cast<uint64_t>(offset_bytes);
  if (trace_.event_inside[row] == 0) device_->alive()->budget.count_fault(at, write);
  space_->managed.fault(at, write);
}

// ---- the plan -------------------------------------------------------------------------------------------------------

void Replay::actions(int32_t op, bool after) {
  while (next_row_ < plan_rows_.size()) {
    const uint64_t row = plan_rows_[next_row_];
    if (plan_->op[row] != op || (plan_->after[row] != 0) != after) return;
    ++next_row_;
    if (lives(plan_->storage[row]) && plan_->bytes[row] > 0) act(row);
  }
}

// Prefetches run beside the ops; the guard's budget knows of them, but neither of advice nor of discards.
void Replay::act(uint64_t row) {
  const int32_t storage = plan_->storage[row];
  const uint64_t at = address(storage) + static_cast<uint64_t>(plan_->offset_bytes[row]);
  const auto bytes = static_cast<uint64_t>(plan_->bytes[row]);
  const int64_t argument = plan_->argument[row];
  clock_.name_storage(storage);
  if (plan_->kind[row] == UM_PLAN_PREFETCH) {
    space_->migrator.lane = Lane::beside;
    um::prefetch(reinterpret_cast<const void*>(at), bytes, argument != 0, nullptr);
    space_->migrator.lane = lane();
  } else if (plan_->kind[row] == UM_PLAN_DISCARD) {
    space_->managed.discard(at, bytes);
  } else {
    advise(at, bytes, static_cast<um_advice>(argument));
  }
  clock_.name_storage(-1);
}

// No advice takes all back that there may be.
void Replay::advise(uint64_t address, uint64_t bytes, um_advice wanted) {
  driver::CUmem_advise advice{};
  if (driver_advice(wanted, &advice)) {
    space_->managed.advise(address, bytes, static_cast<Advice>(advice - driver::CU_MEM_ADVISE_SET_READ_MOSTLY),
                           Processor::device);
    return;
  }
  for (const Advice unset : {Advice::unset_read_mostly, Advice::unset_preferred_location, Advice::unset_accessed_by})
    space_->managed.advise(address, bytes, unset, Processor::device);
}

// ---- steps ----------------------------------------------------------------------------------------------------------

// The trace begins again: what outlives it goes on under its old name or its successor's, the rest is freed.
void Replay::hand_over() {
  std::vector<uint64_t> next(addresses_.size());
  std::vector<Cached> next_cached(cached_.size());
  for (size_t storage = 0; storage < next.size(); ++storage) {
    const int32_t source = index_.continued_from(static_cast<int32_t>(storage));
    const bool fits = source >= 0 && trace_.storage_bytes[source] >= trace_.storage_bytes[storage];
    continued_[storage] = fits;
    if (!fits) continue;
    next[storage] = std::exchange(addresses_[static_cast<size_t>(source)], 0);
    if (!cached_.empty()) next_cached[storage] = cached_[static_cast<size_t>(source)];
  }
  for (size_t storage = 0; storage < next.size(); ++storage) free(static_cast<int32_t>(storage));
  addresses_ = std::move(next);
  places_ = addresses_;
  cached_ = std::move(next_cached);
}

void Replay::close_step(um_simulation& out) {
  const Tally tally = clock_.take_tally();
  um_simulated_step step = tally;
  um_counters now{};
  device_->alive()->accounts.read(&now);
  step.counters = since(now, counters_);
  step.counters.remote_accesses = tally.remote_accesses;
  counters_ = now;
  device_->alive()->accounts.read(&step.memory);
  device_->alive()->accounts.reset_all_peaks();
  step.gpu_fault_groups = std::llround(tally.services);
  step.gpu_batches = std::llround(tally.batches);
  step.gpu_faults = std::llround(tally.entries);
  for (int direction = 0; direction < 2; ++direction) {
    step.gpu_records[direction] = std::llround(tally.records[direction]);
  }
  step.start_ns = step_start_ns_;
  step.duration_ns = clock_.now_ns() - step_start_ns_;
  step_start_ns_ = clock_.now_ns();
  out.steps.push_back(step);
}

}  // namespace um::simulator
