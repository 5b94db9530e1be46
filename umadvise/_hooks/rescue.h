// Where chunks have no room for an op: see um_hooks_rescuer_set.
#pragma once

#include <c10/core/StorageImpl.h>

#include "umadvise.h"

namespace um::hooks {

// Whether what was refused with this status is worth another try.
bool rescued(um_status status);

// Whether what was refused with this status may be tried again, as the step is refused when it ends
// (um_refusals_put_off).
bool put_off(um_status status, um_device* device);

// Moves a storage's bytes out of chunks into managed memory; nobody outside of torch may have its address.
void move_out_of_chunks(c10::StorageImpl& storage, um_device* device);

}  // namespace um::hooks
