// The driver seam: what the core calls, whoever fills it (design: libcuda or the emulated device).
#pragma once

#include "driver/table.h"

namespace um::emulated {
struct Hooks;  // devices/emulated/hooks.h: what only the emulated device can do (touch, pin, events)
}

namespace um::driver {

struct Driver {
  const char* provider;  // "cuda" or "emulated"
  Table call;            // one pointer per function of table.h; never null: a missing one returns an error
  const char* reason[kFunctionCount];  // why a function is missing; nullptr where it is usable
  const emulated::Hooks* hooks;        // nullptr on CUDA
};

// libcuda by dlopen at first use; nullptr, with the reason, when there is none. Thread-safe, tried once.
const Driver* libcuda(const char** reason);
// The emulated devices' driver; its ordinals are those of emulated::open (devices/emulated/hooks.h).
const Driver* emulated();

}  // namespace um::driver
