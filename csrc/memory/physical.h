// The properties of a device's physical memory, for the driver's virtual memory functions.
#pragma once

#include "memory/backend.h"

namespace um {

inline driver::CUmemLocation location_of(const Backend& backend) {
  return {driver::CU_MEM_LOCATION_TYPE_DEVICE, backend.device};
}

inline driver::CUmemAllocationProp physical_properties(const Backend& backend) {
  driver::CUmemAllocationProp properties{};
  properties.type = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = driver::CU_MEM_HANDLE_TYPE_NONE;
  properties.location = location_of(backend);
  return properties;
}

}  // namespace um
