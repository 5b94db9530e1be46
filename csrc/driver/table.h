// The driver functions that the core calls: one list, from which the table of pointers, the indices, the names and the
// stubs for what is missing are made. Nothing else names a driver function's symbol or version.
#pragma once

#include "driver/types.h"

// X(name, symbol, version, parameters...): every function returns a CUresult.
// `version` (1000 * major + 10 * minor) is the CUDA version that introduced this form of the symbol: it is passed to
// cuGetProcAddress, and an older driver lacks the function. One plain name may stand for several forms (cuMemAdvise
// takes a CUdevice since CUDA 8 and a CUmemLocation since 12.2; CUDA 13's header gives the plain name to the latter),
// so the plain name alone is never resolved. Versions: cudaTypedefs.h, PFN_<symbol>_v<version>.
#define UM_DRIVER_FUNCTIONS(X)                                                                                       \
  X(init, cuInit, 2000, unsigned flags)                                                                              \
  X(driver_get_version, cuDriverGetVersion, 2020, int* version)                                                      \
  X(get_error_name, cuGetErrorName, 6000, CUresult error, const char** name)                                         \
  X(get_error_string, cuGetErrorString, 6000, CUresult error, const char** message)                                  \
  X(device_get_count, cuDeviceGetCount, 2000, int* count)                                                            \
  X(device_get, cuDeviceGet, 2000, CUdevice* device, int ordinal)                                                    \
  X(device_get_name, cuDeviceGetName, 2000, char* name, int name_bytes, CUdevice device)                             \
  X(device_total_mem, cuDeviceTotalMem, 3020, size_t* bytes, CUdevice device)                                        \
  X(device_get_attribute, cuDeviceGetAttribute, 2000, int* value, CUdevice_attribute attribute, CUdevice device)     \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000, CUcontext* context, CUdevice device)                  \
  X(device_primary_ctx_release, cuDevicePrimaryCtxRelease, 11000, CUdevice device)                                   \
  X(ctx_set_current, cuCtxSetCurrent, 4000, CUcontext context)                                                       \
  X(ctx_get_current, cuCtxGetCurrent, 4000, CUcontext* context)                                                      \
  X(ctx_synchronize, cuCtxSynchronize, 2000, void)                                                                   \
  X(mem_get_info, cuMemGetInfo, 3020, size_t* free_bytes, size_t* total_bytes)                                       \
  X(mem_alloc, cuMemAlloc, 3020, CUdeviceptr* address, size_t bytes)                                                 \
  X(mem_free, cuMemFree, 3020, CUdeviceptr address)                                                                  \
  X(mem_alloc_managed, cuMemAllocManaged, 6000, CUdeviceptr* address, size_t bytes, unsigned flags)                  \
  X(mem_advise, cuMemAdvise, 12020, CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)  \
  X(mem_prefetch_async, cuMemPrefetchAsync, 12020, CUdeviceptr address, size_t bytes, CUmemLocation location,        \
    unsigned flags, CUstream stream)                                                                                 \
  X(mem_prefetch_batch_async, cuMemPrefetchBatchAsync, 13000, CUdeviceptr* addresses, size_t* bytes, size_t count,   \
    CUmemLocation* locations, size_t* location_starts, size_t location_count, unsigned long long flags,              \
    CUstream stream)                                                                                                 \
  X(mem_discard_batch_async, cuMemDiscardBatchAsync, 13000, CUdeviceptr* addresses, size_t* bytes, size_t count,     \
    unsigned long long flags, CUstream stream)                                                                       \
  X(mem_address_reserve, cuMemAddressReserve, 10020, CUdeviceptr* address, size_t bytes, size_t alignment,           \
    CUdeviceptr hint, unsigned long long flags)                                                                      \
  X(mem_address_free, cuMemAddressFree, 10020, CUdeviceptr address, size_t bytes)                                    \
  X(mem_create, cuMemCreate, 10020, CUmemGenericAllocationHandle* handle, size_t bytes,                              \
    const CUmemAllocationProp* properties, unsigned long long flags)                                                 \
  X(mem_release, cuMemRelease, 10020, CUmemGenericAllocationHandle handle)                                           \
  X(mem_map, cuMemMap, 10020, CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, \
    unsigned long long flags)                                                                                        \
  X(mem_unmap, cuMemUnmap, 10020, CUdeviceptr address, size_t bytes)                                                 \
  X(mem_set_access, cuMemSetAccess, 10020, CUdeviceptr address, size_t bytes, const CUmemAccessDesc* accesses,       \
    size_t count)                                                                                                    \
  X(mem_get_allocation_granularity, cuMemGetAllocationGranularity, 10020, size_t* bytes,                             \
    const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags which)                                   \
  X(memcpy_htod_async, cuMemcpyHtoDAsync, 3020, CUdeviceptr to, const void* from, size_t bytes, CUstream stream)     \
  X(memcpy_dtoh_async, cuMemcpyDtoHAsync, 3020, void* to, CUdeviceptr from, size_t bytes, CUstream stream)           \
  X(memset_d8_async, cuMemsetD8Async, 3020, CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) \
  X(stream_create, cuStreamCreate, 2000, CUstream* stream, unsigned flags)                                           \
  X(stream_destroy, cuStreamDestroy, 4000, CUstream stream)                                                          \
  X(stream_synchronize, cuStreamSynchronize, 2000, CUstream stream)                                                  \
  X(stream_query, cuStreamQuery, 2000, CUstream stream)                                                              \
  X(stream_wait_event, cuStreamWaitEvent, 3020, CUstream stream, CUevent event, unsigned flags)                      \
  X(event_create, cuEventCreate, 2000, CUevent* event, unsigned flags)                                               \
  X(event_destroy, cuEventDestroy, 4000, CUevent event)                                                              \
  X(event_record, cuEventRecord, 2000, CUevent event, CUstream stream)                                               \
  X(event_query, cuEventQuery, 2000, CUevent event)                                                                  \
  X(event_synchronize, cuEventSynchronize, 2000, CUevent event)                                                      \
  X(event_elapsed_time, cuEventElapsedTime, 2000, float* milliseconds, CUevent start, CUevent end)                   \
  X(mem_host_alloc, cuMemHostAlloc, 2020, void** address, size_t bytes, unsigned flags)                              \
  X(mem_free_host, cuMemFreeHost, 2000, void* address)

namespace um::driver {

struct Table {
#define UM_DRIVER_SLOT(name, symbol, version, ...) CUresult (*name)(__VA_ARGS__);
  UM_DRIVER_FUNCTIONS(UM_DRIVER_SLOT)
#undef UM_DRIVER_SLOT
};

// Position of a function in the list, for Driver::reason and kFunctions.
enum class Function : uint32_t {
#define UM_DRIVER_INDEX(name, symbol, version, ...) name,
  UM_DRIVER_FUNCTIONS(UM_DRIVER_INDEX)
#undef UM_DRIVER_INDEX
};

struct FunctionInfo {
  const char* name;    // of the slot: unique
  const char* symbol;  // CUDA's name: shared by the forms of one function
  int version;
};
inline constexpr FunctionInfo kFunctions[] = {
#define UM_DRIVER_INFO(name, symbol, version, ...) {#name, #symbol, version},
    UM_DRIVER_FUNCTIONS(UM_DRIVER_INFO)
#undef UM_DRIVER_INFO
};
inline constexpr size_t kFunctionCount = sizeof(kFunctions) / sizeof(kFunctions[0]);

// What a slot holds where its function is missing: the code that a driver gives for what the system cannot do, so a
// caller has one case to handle. Out-parameters stay as they were.
template <class... Parameters>
CUresult missing(Parameters...) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

// Every slot missing: what a provider starts from.
inline constexpr Table kMissingTable = {
#define UM_DRIVER_MISSING(name, symbol, version, ...) missing,
    UM_DRIVER_FUNCTIONS(UM_DRIVER_MISSING)
#undef UM_DRIVER_MISSING
};

}  // namespace um::driver
