// Refused ops that are tried again: see um_hooks_rescuer_set.
#pragma once

#include "umadvise.h"

namespace um::hooks {

// Whether an op that was refused with this status is to be tried again. Calls Python.
bool rescued(um_status status);

// Whether what was refused with this status may be tried again, as the step is refused when it ends
// (um_refusals_put_off).
bool put_off(um_status status, um_device* device);

}  // namespace um::hooks
