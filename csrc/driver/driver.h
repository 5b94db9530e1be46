// The driver seam: what the core calls, whoever fills it (design: libcuda or the emulated device).
#pragma once

#include <vector>

#include "driver/table.h"

namespace um::driver {

struct DeviceHooks;  // driver/device_hooks.h

struct Driver {
  const char* provider;  // "cuda" or "emulated"
  Table call;            // one pointer per function of table.h; never null: a missing one returns an error
  const char* reason[kFunctionCount];  // why a function is missing; nullptr where it is usable
  const DeviceHooks* hooks;            // what a GPU has no functions for; nullptr on CUDA
};

// libcuda by dlopen at first use; nullptr, with the reason, when there is none. Thread-safe, tried once.
const Driver* libcuda(const char** reason);
// Of one function of libcuda that was called.
struct Calls {
  const char* symbol;
  uint64_t calls;
  int64_t ns;  // of the threads that called
};
// Since the process began. Thread-safe.
std::vector<Calls> libcuda_calls();
// The emulated devices' driver; its ordinals are those of DeviceHooks::open (device_hooks.h).
const Driver* emulated();
// The same for a device that has been given a clock (DeviceHooks::set_clock) before anything else.
const Driver* emulated_in_virtual_time();

}  // namespace um::driver
