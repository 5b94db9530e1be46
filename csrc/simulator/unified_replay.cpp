#include "simulator/unified_replay.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "memory/error.h"
#include "memory/migration.h"
#include "simulator/simulated_device.h"

namespace um::simulator {
namespace {

constexpr uint8_t kReads = 1, kWrites = 2;  // Access of umadvise/trace/schema.py
enum Event : uint8_t { allocated, freed, host_write, host_read, service_read, service_write };

constexpr double kLongestNs = 4e18;  // 127 years: sums of what lasts less stay in 64 bits

void require(bool holds, const std::string& rule) {
  if (!holds) throw Error(UM_INVALID_ARGUMENT, rule);
}

bool positive(double rate) { return rate > 0 && std::isfinite(rate); }

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
      cached_(options.caching != 0 ? trace.storage_count : 0),
      continued_(trace.storage_count) {
  check_costs();
  check_columns();
  order_plan();
  um_emulated_options device{};
  device.capacity_bytes = options.capacity_bytes;
  device.host_bytes = options.host_bytes;
  device.counting = options.service == UM_SERVICE_GUARD ? UM_COUNTING_ORDERED : UM_COUNTING_RAW;
  const Backend backend = Backend::open_simulated(device);
  space_ = &space_of(backend.ordinal);
  device_ = um_device::open_owned(backend);
  space_->clock = &clock_;
}

Replay::~Replay() {
  if (device_ == nullptr) return;
  device_->end_op(nullptr, 0);  // after an error inside an op
  space_->clock = nullptr;
  for (size_t storage = 0; storage < addresses_.size(); ++storage) free(static_cast<int32_t>(storage));
  for (auto& cache : caches_) cache.reset();
  try {
    device_->close();
  } catch (const Error&) {  // it is no driver that could refuse
  }
}

void Replay::check_costs() const {
  const um_pages_costs& costs = options_.costs;
  const um_link& link = options_.link;
  require(options_.placements != nullptr || trace_.storage_count == 0, "the placements of the storages are missing");
  require(options_.iterations > 0, "no iterations: expected at least one");
  require(options_.service <= UM_SERVICE_RECORDED,
          "service is " + std::to_string(options_.service) + ": expected the guard's (0) or the recorded ones (1)");
  for (int direction = 0; direction < 2; ++direction) {
    require(positive(link.bytes_per_s[direction]) && positive(link.both_bytes_per_s[direction]) &&
                link.fixed_ns[direction] >= 0,
            "a link that moves nothing, or back in time");
  }
  require(costs.zero_bytes_per_s > 0 && costs.remote_bytes_per_s > 0 && costs.batch_max > 0,
          "memory that is never filled, accesses that never end, or fault batches without a fault");
  for (const int64_t cost :
       {costs.batch_ns, costs.entry_ns, costs.block_ns, costs.migrate_ns, costs.first_map_ns, costs.evict_ns,
        costs.prefetch_call_ns, costs.prefetch_block_ns, costs.advise_call_ns, costs.read_mostly_block_ns,
        costs.accessed_by_block_ns, options_.launch_ns, link.fixed_ns[0], link.fixed_ns[1]}) {
    require(cost >= 0 && cost <= 1000000000000, "a cost of less than nothing or more than 1000 s");
  }
  const um_concurrency& kernel = options_.concurrency;
  require(kernel.window_pages > 0 && kernel.run_pages > 0 && kernel.faults_per_service > 0,
          "a kernel that touches no pages: expected positive numbers of pages and faults");
}

// What um_device and the arithmetic here would not survive.
void Replay::check_columns() const {
  double sum_ns = 0;
  for (uint64_t op = 0; op < trace_.op_count; ++op) {
    require(trace_.op_duration_ns[op] >= UM_UNKNOWN, "this is no trace: an op of less than no time");
    require(trace_.op_window_pages[op] >= 0 && trace_.op_run_pages[op] >= 0 && trace_.op_faults_per_service[op] >= 0,
            "this is no trace: a kernel of less than no pages");
    sum_ns += static_cast<double>(trace_.op_duration_ns[op]);
  }
  require(sum_ns * options_.iterations < kLongestNs, "a run of more than a hundred years");
  const auto inside = [&](int32_t storage, int64_t offset_bytes, int64_t bytes) {
    const int64_t all_bytes = trace_.storage_bytes[storage];
    return offset_bytes >= 0 && bytes >= 0 && offset_bytes <= all_bytes && bytes <= all_bytes - offset_bytes;
  };
  for (uint64_t row = 0; row < trace_.access_count; ++row) {
    require(inside(trace_.access_storage[row], trace_.access_offset_bytes[row], trace_.access_bytes[row]),
            "this is no trace: an access goes beyond its storage");
  }
  for (uint64_t row = 0; row < trace_.event_count; ++row) {
    const uint8_t kind = trace_.event_kind[row];
    require(kind <= service_write, "this is no trace: an event of unknown kind");
    const bool copies = kind == host_write || kind == host_read;
    require(!copies || inside(trace_.event_storage[row], trace_.event_offset_bytes[row], trace_.event_bytes[row]),
            "this is no trace: a copy goes beyond its storage");
  }
}

void Replay::order_plan() {
  if (plan_ == nullptr) return;
  plan_rows_.resize(plan_->count);
  std::iota(plan_rows_.begin(), plan_rows_.end(), uint64_t{0});
  for (const uint64_t row : plan_rows_) {
    const int64_t storage = plan_->storage[row], op = plan_->op[row];
    require(plan_->kind[row] <= UM_PLAN_DISCARD,
            "the plan swaps or recomputes: under unified memory it may advise, prefetch and discard");
    require(op >= 0 && op < static_cast<int64_t>(trace_.op_count), "the plan names an op that the trace has not");
    require(storage >= 0 && storage < static_cast<int64_t>(trace_.storage_count),
            "the plan names a storage that the trace has not");
    const int64_t bytes = trace_.storage_bytes[storage], offset = plan_->offset_bytes[row];
    require(offset >= 0 && offset <= bytes && plan_->bytes[row] >= 0 && plan_->bytes[row] <= bytes - offset,
            "the plan goes beyond a storage");
    require(
        plan_->kind[row] != UM_PLAN_ADVISE || (plan_->argument[row] >= 0 && plan_->argument[row] < UM_ADVICE_PREFETCH),
        "the plan gives an advice that is none of the driver's");
  }
  const auto place = [&](uint64_t row) { return int64_t{plan_->op[row]} * 2 + (plan_->after[row] != 0); };
  std::stable_sort(plan_rows_.begin(), plan_rows_.end(), [&](uint64_t a, uint64_t b) { return place(a) < place(b); });
}

// ---- the run --------------------------------------------------------------------------------------------------------

um_simulation Replay::run() {
  um_simulation out;
  out.steps.reserve(options_.iterations + uint64_t{1});
  if (options_.budget_bytes != 0) device_->set_budget(options_.budget_bytes);
  device_->counters(&counters_);
  for (uint32_t iteration = 1; iteration <= options_.iterations; ++iteration) {
    clock_.begin_step(iteration == 1 ? 0 : iteration);
    events(-1, false);
    if (iteration == 1) close_step(out);
    clock_.begin_step(iteration);
    device_->set_step(iteration);
    run_iteration();
    close_step(out);
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
    access.write = (trace_.access_flags[row] & kWrites) != 0;
    accesses_.push_back(access);
  }
  if (options_.caching != 0) make_cached(op);
  device_->begin_op(0, trace_.op_phase[op], 0, trace_.op_creates[op] != 0, accesses_.data(),
                    static_cast<uint32_t>(accesses_.size()));
}

// Blocks of a cache are no allocations of the engine, so that it has to be told of them before the op begins.
void Replay::make_cached(int32_t op) {
  for (uint64_t row = index_.first_event(op); row < index_.first_event(op + 1); ++row) {
    if (trace_.event_inside[row] == 0 || trace_.event_kind[row] > freed) continue;
    event(row);
    const int32_t storage = trace_.event_storage[row];
    if (trace_.event_kind[row] != allocated || !lives(storage) || trace_.op_creates[op] != 0) continue;
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
    outputs_.push_back(pointer(storage));
    space_->note_use(address(storage) + static_cast<uint64_t>(trace_.access_offset_bytes[row]),
                     static_cast<uint64_t>(trace_.access_bytes[row]));
  }
}

// ---- events ---------------------------------------------------------------------------------------------------------

void Replay::events(int32_t op, bool inside) {
  for (uint64_t row = index_.first_event(op); row < index_.first_event(op + 1); ++row) {
    const bool made_before = options_.caching != 0 && inside && trace_.event_kind[row] <= freed;
    if ((trace_.event_inside[row] != 0) == inside && !made_before) event(row);
  }
}

void Replay::event(uint64_t row) {
  const int32_t storage = trace_.event_storage[row];
  const uint8_t kind = trace_.event_kind[row];
  // What was there when the iteration began has its contents already.
  if (trace_.event_op[row] < 0 && continued_[static_cast<size_t>(storage)] != 0 && kind != freed) return;
  clock_.name_storage(storage);
  const uint64_t at = address(storage) + static_cast<uint64_t>(trace_.event_offset_bytes[row]);
  const auto bytes = static_cast<uint64_t>(trace_.event_bytes[row]);
  switch (kind) {
    case allocated:
      allocate(storage);
      break;
    case freed:
      free(storage);
      break;
    case host_write:
      if (lives(storage)) um_device::copy_from_host(reinterpret_cast<void*>(at), nullptr, bytes);
      break;
    case host_read:
      if (lives(storage)) um_device::copy_to_host(nullptr, reinterpret_cast<const void*>(at), bytes);
      break;
    default:
      if (options_.service == UM_SERVICE_RECORDED || trace_.event_inside[row] == 0)
        service(storage, trace_.event_offset_bytes[row], kind == service_write);
  }
  clock_.name_storage(-1);
}

void Replay::allocate(int32_t storage) {
  const auto row = static_cast<size_t>(storage);
  require(!lives(storage), "this is no trace: storage " + std::to_string(storage) + " is allocated twice");
  const auto bytes = static_cast<uint64_t>(trace_.storage_bytes[row]);
  if (options_.caching != 0) {
    if (bytes > 0) allocate_cached(storage);
  } else {
    addresses_[row] = reinterpret_cast<uint64_t>(device_->allocate(bytes, options_.placements[row], nullptr));
  }
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
    um_device::prefetch(pointer(storage), bytes, false, nullptr);
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
void Replay::service(int32_t storage, int64_t offset_bytes, bool write) {
  if (!lives(storage) || offset_bytes >= trace_.storage_bytes[storage] ||
      offset_bytes < -static_cast<int64_t>(kBlockBytes))
    return;
  space_->fault(address(storage) + static_cast<uint64_t>(offset_bytes), write);
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
    space_->lane = Lane::beside;
    um_device::prefetch(reinterpret_cast<const void*>(at), bytes, argument != 0, nullptr);
    space_->lane = Lane::ops;
  } else if (plan_->kind[row] == UM_PLAN_DISCARD) {
    space_->discard(at, bytes);
  } else {
    advise(at, bytes, static_cast<um_advice>(argument));
  }
  clock_.name_storage(-1);
}

// No advice takes all back that there may be.
void Replay::advise(uint64_t address, uint64_t bytes, um_advice wanted) {
  driver::CUmem_advise advice{};
  if (driver_advice(wanted, &advice)) {
    space_->advise(address, bytes, static_cast<Advice>(advice - driver::CU_MEM_ADVISE_SET_READ_MOSTLY),
                   Processor::device);
    return;
  }
  for (const Advice unset : {Advice::unset_read_mostly, Advice::unset_preferred_location, Advice::unset_accessed_by})
    space_->advise(address, bytes, unset, Processor::device);
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
  cached_ = std::move(next_cached);
}

void Replay::close_step(um_simulation& out) {
  const Tally tally = clock_.take_tally();
  um_simulated_step step{};
  um_counters now{};
  device_->counters(&now);
  step.counters = since(now, counters_);
  step.counters.remote_accesses = tally.remote_accesses;
  counters_ = now;
  device_->memory(&step.memory);
  device_->reset_peaks();
  step.gpu_fault_groups = std::llround(tally.services);
  step.gpu_batches = std::llround(tally.batches);
  step.gpu_faults = std::llround(tally.entries);
  for (int direction = 0; direction < 2; ++direction) {
    step.gpu_records[direction] = std::llround(tally.records[direction]);
    step.copy_ns[direction] = tally.copy_ns[direction];
  }
  step.start_ns = step_start_ns_;
  step.duration_ns = clock_.now_ns() - step_start_ns_;
  step.compute_ns = tally.compute_ns;
  step.fault_ns = tally.fault_ns;
  step.wait_copy_ns = tally.wait_copy_ns;
  step.wait_room_ns = tally.wait_room_ns;
  step.remote_ns = tally.remote_ns;
  step.call_ns = tally.call_ns;
  step.remote_bytes = tally.remote_bytes;
  step_start_ns_ = clock_.now_ns();
  out.steps.push_back(step);
}

}  // namespace um::simulator
