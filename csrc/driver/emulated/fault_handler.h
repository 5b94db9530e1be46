// SIGSEGV: a touch of a managed block that is not there becomes a page fault of the emulated device; every other signal
// goes on to whoever had it before.
#pragma once

#include "driver/emulated/hooks.h"

namespace um::emulated {

// Installs the handler, and what a fork needs, once; again when somebody else's handler lies on top
// (faulthandler.enable), which then becomes the one that foreign faults are passed on to.
void install_fault_handler();
// Who describes a fatal access (Hooks::set_describer).
void set_describer(Describer describer);

}  // namespace um::emulated
