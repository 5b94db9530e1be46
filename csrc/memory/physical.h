// Physical memory of the driver's, on a device or on the host, as its functions for virtual memory describe it.
#pragma once

#include "memory/backend.h"

namespace um {

inline driver::CUmemLocation location_of(const Backend& backend, bool on_host) {
  // Where the host's memory has no nodes, cuda.h wants a 0.
  return on_host ? driver::CUmemLocation{driver::CU_MEM_LOCATION_TYPE_HOST_NUMA,
                                         backend.host_node > 0 ? backend.host_node : 0}
                 : driver::CUmemLocation{driver::CU_MEM_LOCATION_TYPE_DEVICE, backend.device};
}

inline driver::CUmemAllocationProp physical_properties(const Backend& backend, bool on_host) {
  driver::CUmemAllocationProp properties{};
  properties.type = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = driver::CU_MEM_HANDLE_TYPE_NONE;
  properties.location = location_of(backend, on_host);
  return properties;
}

}  // namespace um
