// Simulated devices: a third provider of the driver table, on which the engine runs unchanged and nothing has bytes.
#pragma once

#include "devices/simulated/space.h"
#include "driver/driver.h"

namespace um::simulator {

// The open device's space; valid until its backend is closed.
Space& space_of(int32_t ordinal);
// That of the current context; nullptr without one.
Space* current_space();

}  // namespace um::simulator

namespace um::driver {

const Driver* simulated();

}  // namespace um::driver
