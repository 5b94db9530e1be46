// The part of the C ABI that emulated devices alone have, and the time that may be theirs.
#include "capi/device.h"
#include "devices/emulated/layout.h"
#include "driver/device_hooks.h"
#include "driver/driver.h"
#include "umadvise.h"

using um::capi::alive;
using um::capi::checked;
using um::capi::given;
using um::capi::guarded;
using um::capi::guarded_value;

int32_t um_emulated_claim_signals(int32_t chosen) {
  if (um::emulated::range_begin() == 0 || um::process::forked()) return 0;
  return um::driver::emulated()->hooks->claim_signals(chosen != 0) ? 1 : 0;
}

uint64_t um_emulated_calls(um_device* device, const char* function) {
  return guarded_value(uint64_t{0}, [&] { return alive(device)->backend.calls(function); });
}

um_status um_emulated_fail(um_device* device, const char* function, uint64_t nth) {
  return guarded([&] { alive(device)->fail(function, nth); });
}

um_status um_emulated_set_link(um_device* device, const um_link* link, const um_driver_costs* costs) {
  return guarded([&] { alive(device)->set_link(*given(link, "the link"), *given(costs, "the driver's costs")); });
}

um_status um_emulated_set_clock(um_device* device, const um_link* link, const um_driver_costs* costs) {
  return guarded([&] { alive(device)->set_clock(*given(link, "the link"), *given(costs, "the driver's costs")); });
}

um_status um_emulated_charged(um_device* device, um_charged* out) {
  return guarded([&] { *given(out, "the place for the sums") = alive(device)->backend.charged(); });
}

int64_t um_now_ns(um_device* device) {
  return guarded_value(int64_t{0}, [&] { return checked(device).backend.now_ns(); });
}

void um_op_took(int64_t duration_ns) {
  if (um::running_op == nullptr) return;
  int64_t& took_ns = um::running_op->took_ns;
  took_ns = (took_ns == UM_UNKNOWN ? 0 : took_ns) + duration_ns;
}
