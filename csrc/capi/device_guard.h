// What the functions of the C ABI for devices share: no device works in a forked child.
#pragma once

#include "base/error.h"
#include "capi/guard.h"
#include "engine/device.h"
#include "memory/process.h"
#include "umadvise.h"

namespace um::capi {

template <class Work>
um_status guarded(const Work& work) noexcept {
  return um::capi::caught([&] {
    if (um::process::forked()) {
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
inline um_device::Locked alive(um_device* device) { return checked(device).alive(); }

}  // namespace um::capi
