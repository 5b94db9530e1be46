#include "replay/gpu_replay.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/scattered.h"
#include "devices/simulated/device.h"
#include "engine/doors.h"
#include "memory/address_map.h"
#include "memory/names.h"
#include "replay/unified_input.h"

namespace um::simulator {
namespace {

constexpr uint32_t kAlike = 3;
constexpr uint64_t kGranule = 512;                 // bytes, of the memory of small storages
constexpr uint64_t kMostGap = uint64_t{32} << 10;  // bytes, as small as what stays
constexpr um_placement kChunked{UM_MEMORY_CHUNKED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
constexpr uint32_t kLeastWarmUp = 2;  // the first iteration has no plan, the second does not begin as it ends

um_gpu_options checked(const um_gpu_options& options) {
  check(options.link);
  require(options.iterations > kLeastWarmUp, "expected at least three iterations: the first two are of warm-up");
  require(options.op_ns >= 0, "an op that takes the host less than no time");
  require(options.call_costs != nullptr || options.call_cost_count == 0, "the costs of calls are missing");
  return options;
}

CallCosts costs_of(const um_gpu_options& options) {
  CallCosts costs{};
  for (const um_call_cost* cost = options.call_costs; cost != options.call_costs + options.call_cost_count; ++cost) {
    const std::string name = name_of(cost->function);
    const auto is_it = [&](const driver::FunctionInfo& info) { return name == info.symbol; };
    const auto found = std::find_if(std::begin(driver::kFunctions), std::end(driver::kFunctions), is_it);
    if (found == std::end(driver::kFunctions) || cost->ns < 0 || cost->ns_per_mib < 0) {
      throw Error(UM_INVALID_ARGUMENT, name + ": no function of the driver that the core calls, or a cost below 0");
    }
    costs[static_cast<size_t>(found - std::begin(driver::kFunctions))] = {cost->ns, cost->ns_per_mib};
  }
  return costs;
}

// Totals only grow: what happened since `before`. Levels and peaks are those of now.
um_swap_counters since(const um_swap_counters& now, const um_swap_counters& before) {
  um_swap_counters difference = now;
  using Total = int64_t um_swap_counters::*;
  for (const Total total :
       {&um_swap_counters::swap_ins, &um_swap_counters::swap_outs, &um_swap_counters::swap_in_bytes,
        &um_swap_counters::swap_out_bytes, &um_swap_counters::on_demand_swap_ins, &um_swap_counters::late_swap_ins,
        &um_swap_counters::unused_swap_ins, &um_swap_counters::evictions, &um_swap_counters::cancelled,
        &um_swap_counters::clean_drops, &um_swap_counters::redundant_actions, &um_swap_counters::actions,
        &um_swap_counters::skipped_actions, &um_swap_counters::wait_copy_ns, &um_swap_counters::wait_room_ns})
    difference.*total -= before.*total;
  difference.programs_followed -= before.programs_followed;
  return difference;
}

bool alike(const um_gpu_step& one, const um_gpu_step& other) {
  const um_swap_counters &a = one.swaps, &b = other.swaps;
  return one.duration_ns == other.duration_ns && a.swap_ins == b.swap_ins && a.swap_outs == b.swap_outs &&
         a.swap_in_bytes == b.swap_in_bytes && a.swap_out_bytes == b.swap_out_bytes && a.evictions == b.evictions &&
         a.clean_drops == b.clean_drops && a.actions == b.actions && a.cancelled == b.cancelled &&
         a.used_peak_bytes == b.used_peak_bytes && a.wait_copy_ns == b.wait_copy_ns && a.wait_room_ns == b.wait_room_ns;
}

}  // namespace

GpuReplay::GpuReplay(const um_trace& trace, const um_plan* plan, const um_gpu_options& options)
    : trace_(trace),
      index_(trace),
      plan_(plan),
      options_(checked(options)),
      clock_(options.link, um_pages_costs{}, options.op_ns),
      places_(trace.storage_count) {
  check(trace, options.iterations);
  const CallCosts costs = costs_of(options);
  um_emulated_options device{};
  device.capacity_bytes = options.capacity_bytes;
  device.counting = UM_COUNTING_RAW;
  backend_ = Backend::open_simulated_gpu(device, options.synchronous != 0);
  Space& space = space_of(backend_.ordinal);
  device_ = um_device::open_owned(backend_, owners_);
  gpu_ = std::make_unique<Gpu>(space, clock_, costs, options.synchronous != 0);
  space.migrator.clock = &clock_;
  space.gpu = gpu_.get();
}

GpuReplay::~GpuReplay() {
  if (device_ == nullptr) return;
  device_->end_op(nullptr, 0);  // after an error inside an op
  for (size_t storage = 0; storage < places_.size(); ++storage) free(static_cast<int32_t>(storage));
  try {
    device_->close();
  } catch (const Error& error) {
    static_cast<void>(error);  // it is no driver that could refuse
  }
}

// ---- the run --------------------------------------------------------------------------------------------------------

um_simulation GpuReplay::run() {
  const CurrentContext current(backend_);  // as torch's threads have it
  um_simulation out;
  device_->alive()->swapping.set(options_.chunks);
  if (options_.storage_address != nullptr) place_small();
  events(-1, false);
  make_before();
  device_->alive()->read(&swaps_);
  step_start_ns_ = clock_.now_ns();
  for (uint32_t iteration = 1; iteration <= options_.iterations && !is_steady(out); ++iteration) {
    if (iteration == 2) set_program();
    clock_.begin_step(iteration);
    if (iteration <= std::max(options_.warm_up, kLeastWarmUp) + 1) gpu_->take_counts();
    device_->alive()->guard.set_step(iteration);
    if (iteration > 1) events(-1, false);
    run_iteration();
    device_->alive()->guard.set_step(0);
    close_step(out);
    hand_over();
  }
  out.spans = clock_.take_spans();
  const CallCounts counts = gpu_->take_counts();
  for (size_t i = 0; i < driver::kFunctionCount; ++i) {
    const CallCount& count = counts[i];
    out.calls.push_back({intern(driver::kFunctions[i].symbol), 0, count.calls, count.ns, count.waits, count.wait_ns});
  }
  return out;
}

// Small storages lie among each other as they did: in the order of their addresses, and what lay between them is free
// again when all are there.
void GpuReplay::place_small() {
  um_swap_counters counters{};
  device_->alive()->read(&counters);
  const uint64_t chunk = counters.chunk_bytes;
  std::map<uint64_t, int32_t> small;
  for (uint64_t row = index_.first_event(-1); row < index_.first_event(0); ++row) {
    const int32_t storage = trace_.event_storage[row];
    const uint64_t address = options_.storage_address[storage];
    if (address != 0) small.emplace(address, storage);
  }
  std::vector<void*> gaps;
  const auto fill = [&](uint64_t bytes) {
    for (uint64_t piece = 0; bytes > 0; bytes -= piece) {
      piece = std::min(bytes, kMostGap);
      gaps.push_back(device_->allocate(piece, kChunked, nullptr));
    }
  };
  uint64_t end = 0;  // of what lies in the present chunk
  for (const auto& [address, storage] : small) {
    const uint64_t begin = address / chunk * chunk;
    if (end < begin) fill((chunk - end % chunk) % chunk);
    fill(address - std::max(end, begin));
    allocate(storage, um_device::Use::by_ops);
    end = address + (static_cast<uint64_t>(index_.bytes(storage)) + kGranule - 1) / kGranule * kGranule;
  }
  fill((chunk - end % chunk) % chunk);
  for (void* const gap : gaps) static_cast<void>(um_device::free(gap));
}

// What is there before the step was made by ops: on the device, until its memory is needed. What never finds room stays
// on the host.
void GpuReplay::make_before() {
  for (int32_t storage = 0; storage < index_.storage_count(); ++storage) {
    if (pointer(storage) == nullptr) continue;
    um_access made{};
    made.address = pointer(storage);
    made.storage = place(storage);
    made.bytes = static_cast<uint64_t>(index_.bytes(storage));
    made.write = 1;
    try {
      device_->begin_op(0, UM_PHASE_NONE, 0, 0, &made, 1);
      launch(0, false);
    } catch (const Error& error) {
      if (error.status() != UM_OUT_OF_DEVICE_MEMORY) throw;
    }
    device_->end_op(nullptr, 0);
  }
  device_->alive()->swapping.begin_anew();
  static_cast<void>(clock_.take_tally());  // of no iteration
  static_cast<void>(clock_.take_spans());
}

void GpuReplay::run_iteration() {
  for (int32_t op = 0; op < index_.op_count(); ++op) {
    try {
      run_op(op);
    } catch (const Error& error) {
      throw Error(error.status(), "at op " + std::to_string(op) + " of the trace: " + error.what());
    }
  }
}

void GpuReplay::run_op(int32_t op) {
  begin(op);
  events(op, true);
  outputs_.clear();
  for (uint64_t row = index_.first_access(op); row < index_.first_access(op + 1); ++row)
    outputs_.push_back({pointer(trace_.access_storage[row]), place(trace_.access_storage[row])});
  launch(std::max<int64_t>(trace_.op_duration_ns[op], 0), trace_.op_host_touch[op] != 0);
  device_->end_op(outputs_.data(), static_cast<uint32_t>(outputs_.size()));
  events(op, false);
}

void GpuReplay::begin(int32_t op) {
  accesses_.clear();
  for (uint64_t row = index_.first_access(op); row < index_.first_access(op + 1); ++row) {
    char* const at = static_cast<char*>(pointer(trace_.access_storage[row]));
    if (at == nullptr) continue;
    um_access access{};
    access.address = at + trace_.access_offset_bytes[row];
    access.storage = place(trace_.access_storage[row]);
    access.bytes = static_cast<uint64_t>(trace_.access_bytes[row]);
    access.write = (trace_.access_flags[row] & kWrite) != 0;
    accesses_.push_back(access);
  }
  device_->begin_op(intern(("op " + std::to_string(op)).c_str()), trace_.op_phase[op], 0, trace_.op_creates[op] != 0,
                    accesses_.data(), static_cast<uint32_t>(accesses_.size()));
}

// The kernel, at the moment at which the host has done everything else for it.
void GpuReplay::launch(int64_t duration_ns, bool host_waits) {
  clock_.begin_op(-1, FaultShape{});
  if (options_.jitter_permille > 0) {
    clock_.call(jitter(options_.op_ns));
    duration_ns += jitter(duration_ns);
  }
  clock_.end_op(duration_ns, host_waits || options_.synchronous != 0);
  ends_ns_.push_back(clock_.now_ns());
  if (options_.queue_ops == 0 || ends_ns_.size() <= options_.queue_ops) return;
  clock_.host_waits(ends_ns_.front());
  ends_ns_.pop_front();
}

// Of a machine on which nothing takes as long as the last time: evenly spread from none to all that there may be.
int64_t GpuReplay::jitter(int64_t duration_ns) {
  const double part = static_cast<double>(scattered(++jitters_) >> 11) / static_cast<double>(uint64_t{1} << 53);
  return static_cast<int64_t>(part * options_.jitter_permille / 1000.0 * static_cast<double>(duration_ns));
}

// ---- storages -------------------------------------------------------------------------------------------------------

void GpuReplay::events(int32_t op, bool inside) {
  for (uint64_t row = index_.first_event(op); row < index_.first_event(op + 1); ++row) {
    if ((trace_.event_inside[row] != 0) == inside) event(row);
  }
}

// What is allocated outside of ops may be used by whoever asked for it; what was there before the step has come with
// its contents.
void GpuReplay::event(uint64_t row) {
  const int32_t storage = trace_.event_storage[row];
  const bool before = trace_.event_op[row] < 0;
  switch (trace_.event_kind[row]) {
    case kAllocate:
      if (before && pointer(storage) != nullptr) return;  // it goes on
      return allocate(storage, before ? um_device::Use::by_ops : um_device::Use::outside_ops);
    case kFree:
      return free(storage);
    case kHostWrite:
    case kHostRead:
      return copy(row);
    default:  // served faults are of unified memory
      return;
  }
}

// Where the host runs ahead, what it copies is the script's own, and takes no time here. What lies on a synchronous
// host is its own to read and write.
void GpuReplay::copy(uint64_t row) {
  char* const at = static_cast<char*>(pointer(trace_.event_storage[row]));
  if (options_.synchronous == 0 || at == nullptr || address_of(at) < kFirstAddress) return;
  const auto bytes = static_cast<uint64_t>(trace_.event_bytes[row]);
  host_.resize(std::max<size_t>(host_.size(), bytes));
  char* const from = at + trace_.event_offset_bytes[row];
  if (trace_.event_kind[row] == kHostWrite) {
    copy_from_host(from, host_.data(), bytes);
  } else {
    copy_to_host(host_.data(), from, bytes);
  }
}

void GpuReplay::allocate(int32_t storage, um_device::Use use) {
  const auto row = static_cast<size_t>(storage);
  require(places_[row] == nullptr, "this is no trace: a storage is allocated twice");
  um_placement placement{};
  placement.memory = UM_MEMORY_CHUNKED;
  placement.role =
      std::min<uint32_t>(trace_.storage_role[row], UM_ROLE_INTERMEDIATE);  // workspaces are none of torch's
  void* const address = device_->allocate(static_cast<uint64_t>(index_.bytes(storage)), placement, nullptr, use);
  if (address != nullptr) places_[row] = std::make_unique<void*>(address);
}

void GpuReplay::free(int32_t storage) noexcept {
  if (pointer(storage) != nullptr) static_cast<void>(um_device::free(pointer(storage)));
  places_[static_cast<size_t>(storage)].reset();
}

// The trace begins again: what outlives it goes on under its old name or its successor's, the rest is made anew.
void GpuReplay::hand_over() {
  std::vector<std::unique_ptr<void*>> next(places_.size());
  for (int32_t storage = 0; storage < index_.storage_count(); ++storage) {
    const int32_t source = index_.continued_from(storage);
    if (source >= 0) next[static_cast<size_t>(storage)] = std::move(places_[static_cast<size_t>(source)]);
  }
  for (int32_t storage = 0; storage < index_.storage_count(); ++storage) free(storage);
  places_ = std::move(next);
}

void GpuReplay::set_program() {
  std::vector<uint32_t> names;
  names.reserve(static_cast<size_t>(index_.op_count()));
  for (int32_t op = 0; op < index_.op_count(); ++op) names.push_back(intern(("op " + std::to_string(op)).c_str()));
  std::vector<uint64_t> serials;
  serials.reserve(places_.size());
  for (int32_t storage = 0; storage < index_.storage_count(); ++storage) {
    um_allocation allocation{};
    if (pointer(storage) != nullptr) um_device::describe(pointer(storage), &allocation);
    serials.push_back(allocation.serial);
  }
  std::vector<uint8_t> states;  // as a session tells them
  for (int32_t storage = 0; storage < index_.storage_count(); ++storage) {
    const uint8_t role = trace_.storage_role[storage];
    const bool same = index_.continued_from(storage) == storage && serials[static_cast<size_t>(storage)] != 0;
    states.push_back(same && (role == UM_ROLE_PARAMETER || role == UM_ROLE_OPTIMIZER_STATE));
  }
  um_program program{};
  program.trace = &trace_;
  program.plan = plan_;
  program.op_name = names.data();
  program.first_serials = serials.data();
  program.state = states.data();
  program.is_last = 1;
  program.h2d_bytes_per_s = std::llround(options_.link.bytes_per_s[0]);
  device_->alive()->plan_executor.add(program);
}

void GpuReplay::close_step(um_simulation& out) {
  const Tally tally = clock_.take_tally();
  um_gpu_step step{};
  step.start_ns = std::exchange(step_start_ns_, clock_.now_ns());
  step.duration_ns = clock_.now_ns() - step.start_ns;
  step.compute_ns = tally.compute_ns;
  step.wait_ns = tally.wait_copy_ns;
  step.host_late_ns = tally.host_late_ns;
  step.call_ns = tally.call_ns;
  for (const int direction : {0, 1}) step.copy_ns[direction] = tally.copy_ns[direction];
  um_swap_counters now{};
  device_->alive()->read(&now);
  step.swaps = since(now, swaps_);
  swaps_ = now;
  device_->alive()->accounts.reset_all_peaks();
  out.gpu_steps.push_back(step);
}

// All alike from now on: so many in a row were since each storage lies where it is going to.
bool GpuReplay::is_steady(const um_simulation& so_far) {
  const std::vector<um_gpu_step>& steps = so_far.gpu_steps;
  if (options_.until_steady == 0 || steps.size() <= kLeastWarmUp) return false;
  const bool laid_out = device_->alive()->swapping.is_laid_out();
  alike_ = laid_out && alike(steps[steps.size() - 2], steps.back()) ? alike_ + 1 : 0;
  return alike_ >= kAlike;
}

}  // namespace um::simulator
