// Our declarations of the driver (driver/types.h, table.h, libcuda.h) against the real cuda.h and cudaTypedefs.h:
// values, sizes, offsets, and for every table entry the signature of the very form that its symbol and version name.
// All at compile time; CMake builds it once with CUDA 12's headers and once with CUDA 13's.
#include "driver/libcuda.h"

namespace ours = um::driver;

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdio>
#include <type_traits>

#include "conformance.h"

static_assert(CUDA_VERSION / 1000 == EXPECTED_CUDA_MAJOR, "the include folder holds another CUDA version's cuda.h");
#if CUDA_VERSION < 13000
using PFN_cuMemPrefetchBatchAsync_v13000 = void;
using PFN_cuMemDiscardBatchAsync_v13000 = void;
#endif

// --- Values.
#define SAME_ERROR(name, value, message) SAME_VALUE(name)
UM_DRIVER_ERRORS(SAME_ERROR)
SAME_VALUE(CU_MEM_ATTACH_GLOBAL)
SAME_VALUE(CU_MEM_ATTACH_HOST)
SAME_VALUE(CU_STREAM_DEFAULT)
SAME_VALUE(CU_STREAM_NON_BLOCKING)
SAME_VALUE(CU_EVENT_DEFAULT)
SAME_VALUE(CU_EVENT_BLOCKING_SYNC)
SAME_VALUE(CU_EVENT_DISABLE_TIMING)
SAME_VALUE(CU_MEM_ADVISE_SET_READ_MOSTLY)
SAME_VALUE(CU_MEM_ADVISE_UNSET_READ_MOSTLY)
SAME_VALUE(CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
SAME_VALUE(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION)
SAME_VALUE(CU_MEM_ADVISE_SET_ACCESSED_BY)
SAME_VALUE(CU_MEM_ADVISE_UNSET_ACCESSED_BY)
SAME_VALUE(CU_MEM_LOCATION_TYPE_DEVICE)
SAME_VALUE(CU_MEM_LOCATION_TYPE_HOST)
SAME_VALUE(CU_MEM_LOCATION_TYPE_HOST_NUMA)
SAME_VALUE(CU_MEM_ALLOCATION_TYPE_PINNED)
SAME_VALUE(CU_MEM_HANDLE_TYPE_NONE)
SAME_VALUE(CU_MEM_ALLOC_GRANULARITY_MINIMUM)
SAME_VALUE(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_NONE)
SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READ)
SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
SAME_VALUE(CU_DEVICE_ATTRIBUTE_INTEGRATED)
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)
SAME_VALUE(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
SAME_VALUE(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)
SAME_VALUE(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
SAME_VALUE(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
#if CUDA_VERSION >= 12090
SAME_VALUE(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
#endif
static_assert(ours::kLegacyStream == CU_GET_PROC_ADDRESS_LEGACY_STREAM);

// --- Types.
#define REPLACED(name)       \
  template <>                \
  struct Ours<::name> {      \
    using type = ours::name; \
  };
#define REPLACED_ENUM(name) \
  REPLACED(name)            \
  static_assert(std::is_same_v<std::underlying_type_t<ours::name>, std::underlying_type_t<::name>>, #name);
REPLACED(CUctx_st)
REPLACED(CUstream_st)
REPLACED(CUevent_st)
REPLACED(CUmemLocation)
REPLACED(CUmemAllocationProp)
REPLACED(CUmemAccessDesc)
REPLACED_ENUM(CUresult)
REPLACED_ENUM(CUmem_advise)
REPLACED_ENUM(CUmemLocationType)
REPLACED_ENUM(CUmemAllocationType)
REPLACED_ENUM(CUmemAllocationHandleType)
REPLACED_ENUM(CUmemAllocationGranularity_flags)
REPLACED_ENUM(CUmemAccess_flags)
REPLACED_ENUM(CUdevice_attribute)
REPLACED_ENUM(CUdriverProcAddressQueryResult)

static_assert(std::is_same_v<ours::CUdevice, ::CUdevice>);
static_assert(std::is_same_v<ours::CUdeviceptr, ::CUdeviceptr>);
static_assert(std::is_same_v<ours::CUcontext, Ours<::CUcontext>::type>);
static_assert(std::is_same_v<ours::CUstream, Ours<::CUstream>::type>);
static_assert(std::is_same_v<ours::CUevent, Ours<::CUevent>::type>);
static_assert(sizeof(ours::CUmemLocation) == sizeof(::CUmemLocation));
static_assert(alignof(ours::CUmemLocation) == alignof(::CUmemLocation));
static_assert(offsetof(ours::CUmemLocation, type) == offsetof(::CUmemLocation, type));
static_assert(offsetof(ours::CUmemLocation, id) == offsetof(::CUmemLocation, id));
static_assert(std::is_same_v<decltype(ours::CUmemLocation::id), decltype(::CUmemLocation::id)>);
static_assert(std::is_same_v<ours::CUmemGenericAllocationHandle, ::CUmemGenericAllocationHandle>);

#define SAME_MEMBER(type, member)                                          \
  static_assert(offsetof(ours::type, member) == offsetof(::type, member)); \
  static_assert(sizeof(ours::type::member) == sizeof(::type::member));
static_assert(sizeof(ours::CUmemAllocationProp) == sizeof(::CUmemAllocationProp));
static_assert(alignof(ours::CUmemAllocationProp) == alignof(::CUmemAllocationProp));
SAME_MEMBER(CUmemAllocationProp, type)
SAME_MEMBER(CUmemAllocationProp, requestedHandleTypes)
SAME_MEMBER(CUmemAllocationProp, location)
SAME_MEMBER(CUmemAllocationProp, win32HandleMetaData)
SAME_MEMBER(CUmemAllocationProp, allocFlags)
SAME_MEMBER(CUmemAllocationProp, allocFlags.compressionType)
SAME_MEMBER(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)
SAME_MEMBER(CUmemAllocationProp, allocFlags.usage)
SAME_MEMBER(CUmemAllocationProp, allocFlags.reserved)
static_assert(sizeof(ours::CUmemAccessDesc) == sizeof(::CUmemAccessDesc));
static_assert(alignof(ours::CUmemAccessDesc) == alignof(::CUmemAccessDesc));
SAME_MEMBER(CUmemAccessDesc, location)
SAME_MEMBER(CUmemAccessDesc, flags)

// --- Signatures. A form that these headers do not know (void) must be newer than they are.
template <class Real, class Declared, int version>
constexpr bool compared() {
  if constexpr (std::is_void_v<Real>) {
    static_assert(version > CUDA_VERSION);
    return false;
  } else {
    static_assert(std::is_same_v<typename Ours<Real>::type, Declared>);
    return true;
  }
}
#define COMPARED(name, symbol, version, ...) \
  +compared<PFN_##symbol##_v##version, decltype(ours::Table::name), version>()
static constexpr int kCompared = 0 UM_DRIVER_FUNCTIONS(COMPARED);
static_assert(std::is_same_v<Ours<PFN_cuGetProcAddress_v12000>::type, ours::GetProcAddress>);

int main() {
  std::printf("CUDA %d.%d: %d of %zu functions compared\n", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, kCompared,
              ours::kFunctionCount);
  // What is no constant expression.
  const auto address = [](auto* stream) { return reinterpret_cast<uintptr_t>(stream); };
  const bool same = address(ours::legacy_stream()) == address(CU_STREAM_LEGACY) &&
                    address(ours::per_thread_stream()) == address(CU_STREAM_PER_THREAD);
  return same ? 0 : 1;
}
