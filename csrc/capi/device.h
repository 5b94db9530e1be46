// What the functions of the C ABI on a device share.
#pragma once

#include "base/error.h"
#include "capi/guard.h"
#include "engine/device.h"
#include "memory/process.h"

namespace um::capi {

template <class Work>
um_status guarded(const Work& work) noexcept {
  return caught([&] {
    if (process::forked()) {
      throw Error(
          UM_BAD_STATE,
          "this process was forked from one that used a device, whose memory stays with its parent: start workers "
          "with spawn or forkserver");
    }
    work();
  });
}

// For functions that return no code: `otherwise` where there is nothing to be had.
template <class Result, class Work>
Result guarded_value(Result otherwise, const Work& work) noexcept {
  Result result = otherwise;
  guarded([&] { result = work(); });
  return result;
}

inline um_device& checked(um_device* device) { return *given(device, "the device"); }
// Locked until the end of the expression.
inline um_device::Locked alive(um_device* device) ACQUIRE(um::device_lock) { return checked(device).alive(); }

// Counts time between ops for `kind` from now on, and returns the kind before. With UM_TIME_PLANNING the next step's
// time begins.
inline um_time count_time_for(const um_device::Locked& device, um_time kind) REQUIRES(um::device_lock) {
  if (kind == UM_TIME_PLANNING) device->sampling.approach();
  return device->times.set_outside(kind, !device->ops.running.empty());
}

}  // namespace um::capi
