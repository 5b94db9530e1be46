// The CUDA driver's types as far as the table needs them, under their own names inside um::driver, so that nothing here
// needs cuda.h and both can be seen in one file. tests/driver/cuda_conformance.cpp compares every value, size and
// offset below with the real cuda.h of CUDA 12 and of CUDA 13.
#pragma once

#include <cstddef>
#include <cstdint>

namespace um::driver {

// X(enumerator, value, message). The codes that a caller of the table may meet, and those of a failing cuInit. A driver
// may return others: the fixed underlying type keeps every value representable.
#define UM_DRIVER_ERRORS(X)                                                                    \
  X(CUDA_SUCCESS, 0, "no error")                                                               \
  X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                           \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                              \
  X(CUDA_ERROR_NOT_INITIALIZED, 3, "the driver is not initialized")                            \
  X(CUDA_ERROR_DEINITIALIZED, 4, "the driver is shutting down")                                \
  X(CUDA_ERROR_STUB_LIBRARY, 34, "this libcuda is the toolkit's link-time stub, not a driver") \
  X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "the device is in use or not available")                \
  X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA device is visible")                                    \
  X(CUDA_ERROR_INVALID_DEVICE, 101, "no such device, or it does not support the call")         \
  X(CUDA_ERROR_INVALID_CONTEXT, 201, "no valid context is current")                            \
  X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable memory error on the device")             \
  X(CUDA_ERROR_OPERATING_SYSTEM, 304, "an operating system call failed")                       \
  X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid stream, event or handle")                         \
  X(CUDA_ERROR_ILLEGAL_STATE, 401, "the object is in the wrong state for this call")           \
  X(CUDA_ERROR_NOT_FOUND, 500, "not found")                                                    \
  X(CUDA_ERROR_NOT_READY, 600, "not finished yet")                                             \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "a kernel used an invalid address; the context is lost")  \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "the context is gone")                               \
  X(CUDA_ERROR_LAUNCH_FAILED, 719, "a kernel failed; the context is lost")                     \
  X(CUDA_ERROR_NOT_PERMITTED, 800, "not permitted")                                            \
  X(CUDA_ERROR_NOT_SUPPORTED, 801, "not supported by this device, system or driver")           \
  X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "the system's GPU services are not running yet")         \
  X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "libcuda and the kernel driver differ in version") \
  X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "forward compatibility is not supported")  \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "not permitted while a stream is captured")    \
  X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

enum CUresult : unsigned {
#define UM_DRIVER_ENUMERATOR(name, value, message) name = (value),
  UM_DRIVER_ERRORS(UM_DRIVER_ENUMERATOR)
#undef UM_DRIVER_ENUMERATOR
};

using CUdevice = int;
using CUdeviceptr = unsigned long long;
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
using CUcontext = CUctx_st*;
using CUstream = CUstream_st*;
using CUevent = CUevent_st*;

// CU_STREAM_LEGACY, the same stream as nullptr, and CU_STREAM_PER_THREAD, another one in each thread. Functions, as an
// address cannot be constexpr.
inline CUstream legacy_stream() { return reinterpret_cast<CUstream>(uintptr_t{1}); }
inline CUstream per_thread_stream() { return reinterpret_cast<CUstream>(uintptr_t{2}); }

enum CUmemAttach_flags : unsigned { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST = 2 };
enum CUstream_flags : unsigned { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum CUevent_flags : unsigned { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };

enum CUmem_advise : unsigned {
  CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
  CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
  CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
  CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
  CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
  CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
};

enum CUmemLocationType : unsigned {
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,       // `id` is ignored
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,  // `id` is a node of the host
};
// Passed by value. CUDA 13.2 put `id` into an anonymous union with smaller members; size and offset did not change.
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

// What cuMemCreate makes, until its release and its last unmapping.
using CUmemGenericAllocationHandle = unsigned long long;
enum CUmemAllocationType : unsigned { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemAllocationHandleType : unsigned { CU_MEM_HANDLE_TYPE_NONE = 0 };  // others share with other processes
enum CUmemAllocationGranularity_flags : unsigned {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};
enum CUmemAccess_flags : unsigned {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
struct CUmemAccessDesc {
  CUmemLocation location;  // who gets access
  CUmemAccess_flags flags;
};

enum CUdevice_attribute : unsigned {
  CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
  CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
  CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,  // the host's node that is closest; -1: its memory has no nodes
  // cuMemCreate at HOST_NUMA locations; headers know it since CUDA 12.9
  CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
};

}  // namespace um::driver
