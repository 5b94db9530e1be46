// Memory of the host at a device's addresses.
#pragma once

#include <string>

#include "memory/backend.h"

namespace um {

// Tries with one chunk what swapped-out blocks need: physical memory of the driver's on the host, mapped once for both
// and once more for the device. Empty where all of it works, else what does not; nothing stays behind. Attribute 141 is
// a promise of the driver's, and a promise broken later would be a block that cannot be shown, so it is tried first.
// The device's context is current.
std::string try_host_mapping(const Backend& backend, uint64_t chunk_bytes);

}  // namespace um
