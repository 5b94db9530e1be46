// Functions of libcuda that the core does not call but CUDA's torch or tools/gpu_check does, and what the driver has to
// see to answer them. They are found by cuGetProcAddress (emulated_libcuda.cpp) and, where torch links them, by their
// names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver/table.h"

namespace um::driver {

// What the table's functions do, watched for the answers below.
CUresult primary_context_retained(CUcontext* context, CUdevice device);
CUresult primary_context_released(CUdevice device);
CUresult range_advised(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location);
CUresult range_prefetched(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream);
CUresult ranges_prefetched(CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations,
                           size_t* location_starts, size_t location_count, unsigned long long flags, CUstream stream);
CUresult memory_freed(CUdeviceptr address);

}  // namespace um::driver

extern "C" {
using CUhostFn = void (*)(void*);
um::driver::CUresult cuDevicePrimaryCtxGetState(um::driver::CUdevice device, unsigned* flags, int* active);
um::driver::CUresult cuPointerGetAttribute(void* value, int attribute, um::driver::CUdeviceptr address);
um::driver::CUresult cuMemRangeGetAttribute(void* value, size_t value_bytes, int attribute,
                                            um::driver::CUdeviceptr address, size_t bytes);
um::driver::CUresult cuMemDiscardAndPrefetchBatchAsync(um::driver::CUdeviceptr* addresses, size_t* bytes, size_t count,
                                                       um::driver::CUmemLocation* locations, size_t* location_starts,
                                                       size_t location_count, unsigned long long flags,
                                                       um::driver::CUstream stream);
um::driver::CUresult cuLaunchHostFunc(um::driver::CUstream stream, CUhostFn function, void* argument);
}
