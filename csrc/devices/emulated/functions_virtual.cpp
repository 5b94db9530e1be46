// Driver functions of virtual memory management: addresses, physical memory, and what lies where.
#include <cstddef>

#include "devices/emulated/call.h"

namespace um::emulated::functions {

namespace {

// False: not a place where this device makes memory.
bool location_ok(const Device& device, CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id == device.ordinal
                                                      : location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

CUresult check(const Device& device, const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->win32HandleMetaData != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto& flags = properties->allocFlags;
  if (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE || flags.compressionType != 0 ||
      flags.gpuDirectRDMACapable != 0 || flags.usage != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const CUmemLocation where = properties->location;
  if (where.type == CU_MEM_LOCATION_TYPE_DEVICE)
    return location_ok(device, where) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  const bool host = where.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && where.id == 0;  // one node
  return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

// Ranges begin on 2 MiB; a driver may decline more.
CUresult mem_address_reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr /*hint*/,
                             unsigned long long flags) {
  const Call call(Function::mem_address_reserve);
  if (call.failed()) return call.result;
  if (address == nullptr || flags != 0 || (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment > kBlockBytes) return CUDA_ERROR_NOT_SUPPORTED;
  return call.device->space.ranges.reserve(bytes, address);
}

CUresult mem_address_free(CUdeviceptr address, size_t bytes) {
  const Call call(Function::mem_address_free, address);
  return call.failed() ? call.result : call.device->space.ranges.free_reserved(address, bytes);
}

CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                    unsigned long long flags) {
  const Call call(Function::mem_create);
  if (call.failed()) return call.result;
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refusal = check(*call.device, properties); refusal != CUDA_SUCCESS) return refusal;
  return call.device->space.physical.create(bytes, properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE, handle);
}

CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const Call call(Function::mem_release);
  return call.failed() ? call.result : call.device->space.physical.release(handle);
}

CUresult mem_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags) {
  const Call call(Function::mem_map, address);
  if (call.failed()) return call.result;
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return call.device->space.mappings.map(address, bytes, handle);
}

CUresult mem_unmap(CUdeviceptr address, size_t bytes) {
  const Call call(Function::mem_unmap, address);
  return call.failed() ? call.result : call.device->space.mappings.unmap(address, bytes);
}

CUresult mem_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* accesses, size_t count) {
  const Call call(Function::mem_set_access, address);
  if (call.failed()) return call.result;
  if (accesses == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  AccessGrant grant;
  for (const CUmemAccessDesc* access = accesses; access < accesses + count; ++access) {
    if (!location_ok(*call.device, access->location)) return CUDA_ERROR_INVALID_DEVICE;
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool host = access->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    (host ? grant.host : grant.device) = static_cast<uint8_t>(access->flags);
  }
  return call.device->space.mappings.set_access(address, bytes, grant);
}

CUresult mem_get_allocation_granularity(size_t* bytes, const CUmemAllocationProp* properties,
                                        CUmemAllocationGranularity_flags which) {
  const Call call(Function::mem_get_allocation_granularity);
  if (call.failed()) return call.result;
  if (bytes == nullptr ||
      (which != CU_MEM_ALLOC_GRANULARITY_MINIMUM && which != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult refusal = check(*call.device, properties); refusal != CUDA_SUCCESS) return refusal;
  *bytes = kBlockBytes;
  return CUDA_SUCCESS;
}

}  // namespace um::emulated::functions
