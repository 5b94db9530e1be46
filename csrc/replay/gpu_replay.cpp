#include "replay/gpu_replay.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "devices/simulated/device.h"
#include "memory/names.h"
#include "replay/unified_input.h"

namespace um::simulator {
namespace {

constexpr uint32_t kFirstCounted = 3;  // the first iteration has no plan, the second does not begin as it ends

um_gpu_options checked(const um_gpu_options& options) {
  check(options.link);
  require(options.iterations >= kFirstCounted, "expected at least three iterations: the first two are of warm-up");
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
        &um_swap_counters::swap_out_bytes, &um_swap_counters::on_demand_swap_ins, &um_swap_counters::evictions,
        &um_swap_counters::cancelled, &um_swap_counters::clean_drops, &um_swap_counters::redundant_actions,
        &um_swap_counters::actions, &um_swap_counters::skipped_actions})
    difference.*total -= before.*total;
  difference.programs_followed -= before.programs_followed;
  return difference;
}

}  // namespace

GpuReplay::GpuReplay(const um_trace& trace, const um_plan* plan, const um_gpu_options& options)
    : trace_(trace),
      index_(trace),
      plan_(plan),
      options_(checked(options)),
      clock_(options.link, um_pages_costs{}, options.op_ns),
      pointers_(trace.storage_count) {
  check(trace, options.iterations);
  const CallCosts costs = costs_of(options);
  um_emulated_options device{};
  device.capacity_bytes = options.capacity_bytes;
  backend_ = Backend::open_simulated_gpu(device);
  Space& space = space_of(backend_.ordinal);
  device_ = um_device::open_owned(backend_);
  gpu_ = std::make_unique<Gpu>(space, clock_, costs);
  space.clock = &clock_;
  space.gpu = gpu_.get();
}

GpuReplay::~GpuReplay() {
  if (device_ == nullptr) return;
  device_->end_op(nullptr, 0);  // after an error inside an op
  for (size_t storage = 0; storage < pointers_.size(); ++storage) free(static_cast<int32_t>(storage));
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
  device_->set_chunks(options_.chunks);
  make_initial();
  for (uint32_t iteration = 1; iteration <= options_.iterations; ++iteration) {
    if (iteration == 2) set_program();
    clock_.begin_step(iteration);
    if (iteration <= kFirstCounted) gpu_->take_counts();
    device_->set_step(iteration);
    run_iteration();
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

// What is there before the first op, each written by an op of its own.
void GpuReplay::make_initial() {
  for (uint64_t row = index_.first_event(-1); row < index_.first_event(0); ++row) {
    const int32_t storage = trace_.event_storage[row];
    if (trace_.event_kind[row] != kAllocate) continue;
    allocate(storage);
    if (pointer(storage) == nullptr) continue;
    um_access access{};
    access.address = pointer(storage);
    access.bytes = static_cast<uint64_t>(index_.bytes(storage));
    access.write = 1;
    device_->begin_op(0, UM_PHASE_NONE, 0, false, &access, 1);
    launch(0, false);
    device_->end_op(nullptr, 0);
  }
  device_->swapping(&swaps_);
  step_start_ns_ = clock_.now_ns();
  static_cast<void>(clock_.take_tally());
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
    outputs_.push_back(pointer(trace_.access_storage[row]));
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
  clock_.end_op(duration_ns, host_waits);
  ends_ns_.push_back(clock_.now_ns());
  if (options_.queue_ops == 0 || ends_ns_.size() <= options_.queue_ops) return;
  clock_.host_waits(ends_ns_.front());
  ends_ns_.pop_front();
}

// ---- storages -------------------------------------------------------------------------------------------------------

// What the host copies is the script's own, and takes no time here.
void GpuReplay::events(int32_t op, bool inside) {
  for (uint64_t row = index_.first_event(op); row < index_.first_event(op + 1); ++row) {
    if ((trace_.event_inside[row] != 0) != inside) continue;
    if (trace_.event_kind[row] == kAllocate) allocate(trace_.event_storage[row]);
    if (trace_.event_kind[row] == kFree) free(trace_.event_storage[row]);
  }
}

void GpuReplay::allocate(int32_t storage) {
  const auto row = static_cast<size_t>(storage);
  require(pointers_[row] == nullptr, "this is no trace: a storage is allocated twice");
  um_placement placement{};
  placement.memory = UM_MEMORY_CHUNKED;
  placement.role =
      std::min<uint32_t>(trace_.storage_role[row], UM_ROLE_INTERMEDIATE);  // workspaces are none of torch's
  pointers_[row] = device_->allocate(static_cast<uint64_t>(index_.bytes(storage)), placement, nullptr);
}

void GpuReplay::free(int32_t storage) noexcept {
  void*& pointer = pointers_[static_cast<size_t>(storage)];
  if (pointer != nullptr) static_cast<void>(um_device::free(pointer));
  pointer = nullptr;
}

// The trace begins again: what outlives it goes on under its old name or its successor's, the rest is made anew.
void GpuReplay::hand_over() {
  std::vector<void*> next(pointers_.size());
  for (int32_t storage = 0; storage < index_.storage_count(); ++storage) {
    const int32_t source = index_.continued_from(storage);
    if (source >= 0)
      next[static_cast<size_t>(storage)] = std::exchange(pointers_[static_cast<size_t>(source)], nullptr);
  }
  for (int32_t storage = 0; storage < index_.storage_count(); ++storage) free(storage);
  pointers_ = std::move(next);
}

void GpuReplay::set_program() {
  std::vector<uint32_t> names;
  names.reserve(static_cast<size_t>(index_.op_count()));
  for (int32_t op = 0; op < index_.op_count(); ++op) names.push_back(intern(("op " + std::to_string(op)).c_str()));
  std::vector<uint64_t> serials;
  for (void* each : pointers_) {
    um_allocation allocation{};
    if (each != nullptr) um_device::describe(each, &allocation);
    serials.push_back(allocation.serial);
  }
  const um_program program{&trace_, plan_, names.data(), serials.data()};
  device_->set_program(&program);
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
  device_->swapping(&now);
  step.swaps = since(now, swaps_);
  swaps_ = now;
  device_->reset_peaks();
  out.gpu_steps.push_back(step);
}

}  // namespace um::simulator
