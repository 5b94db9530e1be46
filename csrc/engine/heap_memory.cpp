#include "engine/heap_memory.h"

#include "base/error.h"

namespace um {

Block* DeviceMemory::make(const Request& request) {
  if (request.placement.memory != UM_MEMORY_PREFER_DEVICE) return HeapMemory::make(request);
  Request resolved = request;
  if (request.bytes < refused_bytes_) {  // do not ask a full device again for each small tensor
    resolved.placement.memory = UM_MEMORY_DEVICE;
    try {
      return HeapMemory::make(resolved);
    } catch (const Error& error) {
      if (error.status() != UM_OUT_OF_DEVICE_MEMORY) throw;
    }
    refused_bytes_ = request.bytes;
  }
  resolved.placement.memory = UM_MEMORY_MANAGED;
  return managed_.make(resolved);
}

void DeviceMemory::prefetch(Block*, uint64_t, uint64_t, bool, driver::CUstream) {
  throw Error(UM_UNSUPPORTED, "plain device memory stays where it is: only managed memory moves");
}

void DeviceMemory::free(Block* block) noexcept {
  refused_bytes_ = kNothingRefused;
  HeapMemory::free(block);
}

}  // namespace um
