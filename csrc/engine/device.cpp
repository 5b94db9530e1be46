#include "engine/device.h"

#include <algorithm>
#include <cstdio>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/address_map.h"

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

um_device::um_device(um::Backend its_backend, um::Owners& its_owners)
    : DeviceBase(this, std::move(its_backend), its_owners) {
  kinds = {&parts_->managed, &parts_->plain, &parts_->plain, &swapping};
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

void um_device::begin_op(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, const um_access* accesses,
                         uint32_t count) {
  std::pair<const um_access*, uint32_t> given(accesses, count);
  const um_gather give = [](void* context, const um_access** out, uint32_t* out_count) {
    std::tie(*out, *out_count) = *static_cast<decltype(given)*>(context);
  };
  begin_op(op, phase, module, flags, give, &given);
}

void um_device::begin_op(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, um_gather gather,
                         void* context) {
  if (um::running_op != nullptr) {
    throw um::Error(UM_BAD_STATE, "an op runs in this thread already: ops do not nest");
  }
  um::RunningOp* running = nullptr;
  {
    const Locked locked = alive();
    running = guard.enter(op, phase, module, flags, gather, context);
  }
  um::running_op = running;
  const um::OnError end([&] { end_op(nullptr, 0); });  // the caller ends only ops whose begin succeeded
  guard.bring(*running);
}

uint32_t um_device::end_op(const um_shown* outputs, uint32_t count) noexcept {
  um::RunningOp* const op = own_op();
  return op != nullptr ? guard.end(op, outputs, count) : 0;
}

void um_device::show(const void* address, void* storage) noexcept {
  const Found found = find(um::address_of(address), true);
  if (found.block != nullptr) found.device->kind_of(*found.block).meet(found.block, storage);
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
