#include "devices/emulated/hooks.h"

#include "devices/emulated/call.h"
#include "devices/emulated/device.h"
#include "devices/emulated/fault_handler.h"
#include "devices/emulated/owner.h"
#include "driver/driver.h"

namespace um::emulated {
namespace {

Space& space(int32_t ordinal) { return device_at(ordinal)->space; }

um_status open(const um_emulated_options* options, int32_t* ordinal, char* message, uint64_t message_bytes) {
  return open_device(*options, ordinal, message, message_bytes);
}

constexpr Hooks kHooks = {
    open,
    close_device,
    [](int32_t ordinal, uint64_t address, uint64_t bytes, bool write) {
      return space(ordinal).touch(address, bytes, write);
    },
    [](int32_t ordinal, uint64_t address, uint64_t bytes) { return space(ordinal).pin(address, bytes); },
    [](int32_t ordinal, uint64_t address, uint64_t bytes) { space(ordinal).unpin(address, bytes); },
    [](int32_t ordinal, uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks) {
      space(ordinal).residency(address, bytes, device_blocks, host_blocks);
    },
    [](int32_t ordinal, uint64_t address, uint64_t bytes, uint32_t tag) { space(ordinal).tag(address, bytes, tag); },
    [](int32_t ordinal) { space(ordinal).reset_peaks(); },
    [](int32_t ordinal, uint64_t context) { space(ordinal).context.store(context, std::memory_order_relaxed); },
    [](int32_t ordinal, bool on) { space(ordinal).record(on); },
    [](int32_t ordinal) { return space(ordinal).pending(); },
    [](int32_t ordinal, Event* out, uint64_t capacity) { return space(ordinal).drain(out, capacity); },
    [](int32_t ordinal) { return space(ordinal).dropped(); },
    [](int32_t ordinal, Totals* out) { *out = space(ordinal).totals(); },
    [](int32_t ordinal, const char* function) { return device_at(ordinal)->log.calls(function); },
    [](int32_t ordinal, const char* function, uint64_t nth) { return device_at(ordinal)->log.arm(function, nth); },
    [](int32_t ordinal, const um_link* link, const um_driver_costs* costs) { space(ordinal).set_link(*link, *costs); },
    [](int32_t ordinal, um_charged* out) { *out = space(ordinal).charged(); },
    install_fault_handler,
    [](int32_t ordinal, uint64_t address, uint64_t bytes, bool veiled) {
      return space(ordinal).veil(address, bytes, veiled);
    },
    set_owner,
    set_describer,
};

}  // namespace
}  // namespace um::emulated

namespace um::driver {

const Driver* emulated() {
  static const Driver driver = [] {
    Driver made{"emulated", kMissingTable, {}, &um::emulated::kHooks};
    um::emulated::fill_context_functions(made.call);
    um::emulated::fill_memory_functions(made.call);
    um::emulated::fill_virtual_functions(made.call);
    um::emulated::fill_copy_functions(made.call);
    um::emulated::fill_stream_functions(made.call);
    return made;
  }();
  return &driver;
}

}  // namespace um::driver
