// SIGSEGV: a touch of a managed block that is not there becomes a page fault of the emulated device; every other signal
// goes on to whoever had it before.
#pragma once

#include "driver/device_hooks.h"

namespace um::emulated {

// Installs the handler, and what a fork needs, once; again when somebody else's handler lies on top
// (faulthandler.enable, sigaction), which then becomes the first that foreign faults are passed on to. `chosen`: the
// user has just set that one, so that raised signals go to it at once. True where another one lay on top.
bool install_fault_handler(bool chosen);
// Who describes a fatal access (DeviceHooks::set_describer).
void set_describer(driver::AccessDescriber describer);

}  // namespace um::emulated
