// Asking whoever mapped reserved memory about an access that its mapping does not allow.
//
// The answer takes locks, allocates and copies, none of which a signal handler may do, on a stack that may be 8 KiB: so
// it comes from a thread of its own, and the handler only waits for it.
#pragma once

#include <cstdint>

#include "driver/device_hooks.h"

namespace um::emulated {

// DeviceHooks::set_owner. Starts the thread that asks it, once for the life of the process. Throws std::bad_alloc.
void set_owner(driver::AccessOwner owner);
// What the owner says; false when there is none, or when it is the owner's own access. Async-signal-safe.
bool ask_owner(uint64_t address, bool write);

}  // namespace um::emulated
