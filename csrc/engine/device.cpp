#include "engine/device.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/routes.h"

namespace {

// Tries for each range: a driver that failed once may take it the next time.
constexpr int kReturnAttempts = 3;

// Keeps every device reachable: they live as long as the process.
void keep(um_device* device) {
  static std::mutex mutex;
  static auto* devices = new std::vector<um_device*>;
  const std::lock_guard<std::mutex> lock(mutex);
  devices->push_back(device);
}

}  // namespace

um_device* um_device::open(um::Backend backend) {
  std::unique_ptr<um_device> device = open_owned(backend);
  const um::OnError undo([&] { backend.close(); });
  keep(device.get());
  return device.release();
}

std::unique_ptr<um_device> um_device::open_owned(um::Backend backend) {
  const um::OnError undo([&] { backend.close(); });
  std::unique_ptr<um_device> device(new um_device(backend));
  device->allocations_ = std::make_unique<um::Allocations>(device.get(), device->backend_);
  device->fences_ = std::make_unique<um::Fences>(device->backend_);
  return device;
}

um_device::Lock um_device::lock_alive() {
  Lock lock(mutex_);
  if (allocations_ == nullptr) throw um::Error(UM_BAD_STATE, "the device is closed");
  return lock;
}

void um_device::close() {
  um::forget_route(this);
  const Lock lock(mutex_);
  if (!accepts_) throw um::Error(UM_BAD_STATE, "the device is closed already");
  accepts_ = false;
  drop_idle_budget();
  if (allocations_->statistics.live_allocations() == 0 && !empty_out()) {
    throw um::Error(UM_DRIVER_ERROR, "the device is closed, but the driver did not take all of its memory back");
  }
}

// False when the driver keeps refusing a range: then what it stands for is left as it is, for good.
bool um_device::empty_out() noexcept {
  bool returned = false;
  for (int attempt = 0; attempt < kReturnAttempts && !returned; ++attempt) returned = allocations_->trim();
  budget_.reset();
  if (!returned) {
    [[maybe_unused]] const void* const kept[] = {allocations_.release(), swapper_.release(), chunked_.release(),
                                                 fences_.release()};  // its heaps refer to them
    return false;
  }
  collect_device_events();
  allocations_.reset();
  sampling_.reset();  // while there is a context for its events
  durations_.destroy();
  end_swapping();
  backend_.close();
  return true;
}

void um_device::query(um_device_info* out) {
  const Lock lock = lock_alive();
  *out = {};
  std::snprintf(out->name, sizeof(out->name), "%s", backend_.name.c_str());
  std::snprintf(out->provider, sizeof(out->provider), "%s", backend_.driver->provider);
  out->ordinal = backend_.ordinal;
  out->driver_version = backend_.driver_version;
  out->concurrent_managed = backend_.concurrent_managed;
  out->pageable_access = backend_.pageable_access;
  out->total_bytes = backend_.total_bytes;
  out->counting = static_cast<uint32_t>(backend_.counting);
  out->live_allocations = static_cast<uint32_t>(allocations_->statistics.live_allocations());
  const um::RequiredContext current(backend_);
  size_t free_bytes = 0, total_bytes = 0;
  backend_.check(backend_.call().mem_get_info(&free_bytes, &total_bytes), "asking for free device memory");
  out->free_bytes = free_bytes;
}

std::string um_device::why_not(um::Feature feature) {
  const Lock lock = lock_alive();
  return um::why_not(backend_, feature);
}

uint64_t um_device::calls(const char* function) {
  const Lock lock = lock_alive();
  return backend_.hooks == nullptr ? 0 : backend_.hooks->calls(backend_.ordinal, function);
}

void um_device::fail(const char* function, uint64_t nth) {
  const Lock lock = lock_alive();
  if (backend_.hooks == nullptr)
    throw um::Error(UM_UNSUPPORTED, "only calls of the emulated device can be made to fail");
  if (!backend_.hooks->fail(backend_.ordinal, function, nth)) {
    throw um::Error(UM_INVALID_ARGUMENT, std::string("the driver table has no function '") + function + "'");
  }
}

void um_device::set_link(const um_link& link, const um_driver_costs& costs) {
  const Lock lock = lock_alive();
  if (backend_.hooks == nullptr) throw um::Error(UM_UNSUPPORTED, "a GPU has a link of its own: none can be charged");
  for (int direction : {0, 1}) {
    // Also false for what is not a number.
    if (!(link.bytes_per_s[direction] > 0 && link.both_bytes_per_s[direction] > 0 && link.fixed_ns[direction] >= 0)) {
      throw um::Error(UM_INVALID_ARGUMENT, "a link needs speeds above 0 and a fixed cost of at least 0");
    }
  }
  const int64_t least = std::min({costs.fault_ns, costs.migrate_ns, costs.first_map_ns, costs.zero_ns, costs.evict_ns,
                                  costs.prefetch_call_ns, costs.prefetch_block_ns, costs.advise_call_ns,
                                  costs.read_mostly_block_ns, costs.present_block_ns});
  if (least < 0 || !(costs.prefetch_bytes_per_s >= 0)) {
    throw um::Error(UM_INVALID_ARGUMENT, "the driver's costs must be at least 0");
  }
  backend_.hooks->set_link(backend_.ordinal, &link, &costs);
}

um_charged um_device::charged() {
  const Lock lock = lock_alive();
  um_charged out{};
  if (backend_.hooks != nullptr) backend_.hooks->charged(backend_.ordinal, &out);
  return out;
}
