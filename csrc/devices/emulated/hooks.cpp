#include "devices/emulated/call.h"
#include "devices/emulated/device.h"
#include "devices/emulated/fault_handler.h"
#include "devices/emulated/owner.h"
#include "driver/device_hooks.h"
#include "driver/driver.h"

namespace um::emulated {
namespace {

Space& space(int32_t ordinal) { return device_at(ordinal)->space; }

constexpr driver::DeviceHooks kHooks = {
    open_device,
    close_device,
    [](int32_t ordinal, uint64_t address, uint64_t bytes, bool write) {
      return space(ordinal).managed.touch(address, bytes, write);
    },
    [](int32_t ordinal, uint64_t address, uint64_t bytes) { return space(ordinal).managed.pin(address, bytes); },
    [](int32_t ordinal, uint64_t address, uint64_t bytes) { space(ordinal).managed.unpin(address, bytes); },
    [](int32_t ordinal, uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks) {
      space(ordinal).blocks.residency(address, bytes, device_blocks, host_blocks);
    },
    [](int32_t ordinal, uint64_t address, uint64_t bytes, uint32_t tag) {
      space(ordinal).blocks.tag(address, bytes, tag);
    },
    [](int32_t ordinal) { space(ordinal).blocks.reset_peaks(); },
    [](int32_t ordinal, uint64_t context) { space(ordinal).events.context.store(context, std::memory_order_relaxed); },
    [](int32_t ordinal, bool on) { space(ordinal).events.on = on; },
    [](int32_t ordinal) { return space(ordinal).events.pending(); },
    [](int32_t ordinal, driver::DeviceEvent* out, uint64_t capacity) {
      return space(ordinal).events.drain(out, capacity);
    },
    [](int32_t ordinal) { return space(ordinal).events.dropped.load(); },
    [](int32_t ordinal, driver::DeviceTotals* out) { *out = space(ordinal).totals(); },
    [](int32_t ordinal, driver::StallTimes* out) { *out = space(ordinal).managed.stood(); },
    [](int32_t ordinal, const char* function) { return device_at(ordinal)->log.calls(function); },
    [](int32_t ordinal, const char* function, uint64_t nth) { return device_at(ordinal)->log.arm(function, nth); },
    [](int32_t ordinal, const um_link* link, const um_driver_costs* costs) {
      const SpinGuard guard(space(ordinal).blocks.lock);
      space(ordinal).link.set(*link, *costs);
    },
    [](int32_t ordinal, um_charged* out) {
      const SpinGuard guard(space(ordinal).blocks.lock);
      *out = space(ordinal).link.charged();
    },
    [](int32_t ordinal, const um_link* link, const um_driver_costs* costs) {
      Device& device = *device_at(ordinal);
      device.time = std::make_unique<VirtualTime>(*link);
      const SpinGuard guard(device.space.blocks.lock);
      device.space.link.set(*link, *costs);
      device.space.link.keep_time(device.time.get());
    },
    [](int32_t ordinal) {
      const VirtualTime* const time = device_at(ordinal)->time.get();
      return time != nullptr ? time->now_ns() : now_ns();
    },
    [](int32_t ordinal, int64_t duration_ns) {
      if (VirtualTime* const time = device_at(ordinal)->time.get()) time->run_op(duration_ns);
    },
    install_fault_handler,
    [](int32_t ordinal, uint64_t address, uint64_t bytes, bool veiled) {
      return space(ordinal).mappings.veil(address, bytes, veiled);
    },
    set_owner,
    [](int32_t ordinal, bool on) { space(ordinal).announces_faults.store(on, std::memory_order_relaxed); },
    set_describer,
    true,
    true,
    true,
};

}  // namespace
}  // namespace um::emulated

namespace um::driver {

const Driver* emulated() {
  static constexpr Driver driver = {
      "emulated",
      {
#define UM_EMULATED_SLOT(name, symbol, version, ...) um::emulated::functions::name,
          UM_DRIVER_FUNCTIONS(UM_EMULATED_SLOT)
#undef UM_EMULATED_SLOT
      },
      {},
      &um::emulated::kHooks,
  };
  return &driver;
}

}  // namespace um::driver
