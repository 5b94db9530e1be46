#include "engine/device.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/on_error.h"

namespace {

// Attempts for each range, because a driver failure may be transient.
constexpr int kReturnAttempts = 3;

void check(const um_link& link) {
  for (int direction : {0, 1}) {
    // This is also false for a number that is not a number.
    if (!(link.bytes_per_s[direction] > 0 && link.both_bytes_per_s[direction] > 0 && link.fixed_ns[direction] >= 0)) {
      throw um::Error(UM_INVALID_ARGUMENT, "a link needs speeds above 0 and a fixed cost of at least 0");
    }
  }
}

}  // namespace

um_device::Parts::Parts(um::DeviceBase& base)
    : times(base.backend, swaps),
      streams(base.backend, base.fences),
      repetition(base),
      step_undo(base),
      block_owners(base),
      sampling(base, log, swaps, times, tape),
      observation(base, log, swaps, times, sampling),
      budget(base, block_owners, observation, sampling, serve_stray_access),
      accounts(base, sampling, budget),
      workspaces(base, budget),
      swapping(base, swaps, sampling, step_undo, serve_stray_access, tell_stray_access),
      exports(base, budget, accounts, swapping),
      recording(base, tape, observation, swapping),
      plan_executor(base, streams, budget, accounts, swapping),
      conversion(base, swaps, sampling, observation, budget, accounts, swapping),
      guard(base, swaps, times, streams, step_undo, block_owners, observation, budget, accounts, swapping) {}

um_device::um_device(um::Backend its_backend, um::Owners& its_owners)
    : DeviceBase(this, std::move(its_backend), its_owners),
      parts_(std::make_unique<Parts>(*this)),
      guard(parts_->guard),
      times(parts_->times),
      streams(parts_->streams),
      repetition(parts_->repetition),
      step_undo(parts_->step_undo),
      block_owners(parts_->block_owners),
      sampling(parts_->sampling),
      observation(parts_->observation),
      budget(parts_->budget),
      accounts(parts_->accounts),
      swapping(parts_->swapping),
      exports(parts_->exports),
      recording(parts_->recording),
      plan_executor(parts_->plan_executor),
      conversion(parts_->conversion) {
  if (backend.hooks->exact && backend.counting == UM_COUNTING_RAW) participants.join(accounts);
  if (!backend.hooks->in_host) participants.join(parts_->workspaces);
}

// Keeps every device reachable for the life of the process. Frees the participants of emptied devices, but only when
// another one is opened, so that their counters can be read until then.
void um_device::keep(um_device* device) {
  static std::mutex mutex;
  static auto* devices = new std::vector<um_device*>;
  const std::lock_guard<std::mutex> lock(mutex);
  for (um_device* const each : *devices) each->free_parts();
  devices->push_back(device);
}

// A caller that uses a participant holds the lock of a live device, or has a running op.
void um_device::free_parts() noexcept {
  const Lock lock = try_lock();
  if (!lock.owns_lock()) return;
  um::device_lock.assert_held();
  if (!emptied_ || !has_parts() || !ops.running.empty()) return;
  parts_.reset();
  ops = {};
  backend.helper.reset();
}

um_device* um_device::open(um::Backend backend) {
  std::unique_ptr<um_device> device = open_owned(backend, um::process_owners());
  const um::OnError undo([&] { backend.close(); });
  keep(device.get());
  return device.release();
}

std::unique_ptr<um_device> um_device::open_owned(um::Backend backend, um::Owners& owners) {
  const um::OnError undo([&] { backend.close(); });
  return std::unique_ptr<um_device>(new um_device(backend, owners));
}

um_device::Locked um_device::alive() {
  Locked locked = lock();
  if (allocations == nullptr) throw um::Error(UM_BAD_STATE, "the device is closed");
  return locked;
}

void um_device::close() {
  const Locked locked = lock();
  if (!accepts_) throw um::Error(UM_BAD_STATE, "the device is closed already");
  accepts_ = false;
  budget.drop_if_idle();
  if (allocations->statistics.live_allocations() == 0 && !empty_out()) {
    throw um::Error(UM_DRIVER_ERROR, "the device is closed, but the driver did not take all of its memory back");
  }
}

// Returns false if the driver keeps refusing a range. The objects that describe the range are then never freed.
bool um_device::empty_out() noexcept {
  bool returned = false;
  for (int attempt = 0; attempt < kReturnAttempts && !returned; ++attempt) returned = allocations->trim();
  budget.drop();
  if (!returned) {
    swapping.abandon();
    [[maybe_unused]] const void* const kept[] = {allocations.release(),
                                                 fences.release()};  // their heaps refer to each other
    return false;
  }
  backend.helper->end();
  observation.collect();
  participants.leave_all();
  allocations.reset();
  sampling.close();  // while the context of its events exists
  recording.durations.destroy();
  {
    const um::CurrentContext current(backend);
    plan_executor.close();
    step_undo.close();
    swapping.close();
    fences.reset();
    streams.close();
  }
  backend.close();
  emptied_ = true;
  return true;
}

void um_device::query(um_device_info* out) {
  *out = {};
  std::snprintf(out->name, sizeof(out->name), "%s", backend.name.c_str());
  std::snprintf(out->provider, sizeof(out->provider), "%s", backend.driver->provider);
  out->ordinal = backend.ordinal;
  out->driver_version = backend.driver_version;
  out->concurrent_managed = backend.concurrent_managed;
  out->pageable_access = backend.pageable_access;
  out->total_bytes = backend.total_bytes;
  out->counting = static_cast<uint32_t>(backend.counting);
  out->live_allocations = static_cast<uint32_t>(allocations->statistics.live_allocations());
  const um::RequiredContext current(backend);
  size_t free_bytes = 0, total_bytes = 0;
  backend.check(backend.call().mem_get_info(&free_bytes, &total_bytes), "asking for free device memory");
  out->free_bytes = free_bytes;
}

void um_device::read(um_swap_counters* out) {
  swapping.read(out);
  plan_executor.tell(out);
}

void um_device::fail(const char* function, uint64_t nth) {
  if (!backend.hooks->exact) throw um::Error(UM_UNSUPPORTED, "only calls of the emulated device can be made to fail");
  if (!backend.hooks->fail(backend.ordinal, function, nth)) {
    throw um::Error(UM_INVALID_ARGUMENT, std::string("the driver table has no function '") + function + "'");
  }
}

void um_device::set_link(const um_link& link, const um_driver_costs& costs) {
  if (!backend.hooks->exact) throw um::Error(UM_UNSUPPORTED, "a GPU has a link of its own: none can be charged");
  check(link);
  const int64_t least = std::min({costs.fault_ns, costs.migrate_ns, costs.first_map_ns, costs.zero_ns, costs.evict_ns,
                                  costs.prefetch_call_ns, costs.prefetch_block_ns, costs.advise_call_ns,
                                  costs.read_mostly_block_ns, costs.present_block_ns});
  if (least < 0 || !(costs.prefetch_bytes_per_s >= 0)) {
    throw um::Error(UM_INVALID_ARGUMENT, "the driver's costs must be at least 0");
  }
  backend.hooks->set_link(backend.ordinal, &link, &costs);
}

// Replaces the functions of streams and events, so there must be none yet.
void um_device::set_clock(const um_link& link, const um_driver_costs& costs) {
  if (backend.driver != um::driver::emulated())
    throw um::Error(UM_UNSUPPORTED, "only an emulated device's time can be virtual, and its clock is set once");
  check(link);
  if (swapping.has_chunks() || streams.has_side() || fences->events() > 0)
    throw um::Error(UM_BAD_STATE, "the device's streams run in real time already: set its clock first");
  backend.hooks->set_clock(backend.ordinal, &link, &costs);
  backend.driver = um::driver::emulated_in_virtual_time();
}
