// Our declarations of CUPTI (cupti/abi.h) against the real cupti.h: values, sizes, offsets, and the signature of each
// function. All at compile time; CMake builds it once with CUDA 12's headers and once with CUDA 13's.
#include "cupti/library.h"

namespace ours = um::cupti;

#include <cupti.h>

#include <cstdio>
#include <type_traits>

#include "conformance.h"

static_assert(CUDA_VERSION / 1000 == EXPECTED_CUDA_MAJOR, "the include folder holds another CUDA version's headers");
static_assert(CUPTI_API_VERSION >= ours::kOldestVersion);

// --- Values.
SAME_VALUE(CUPTI_SUCCESS)
SAME_VALUE(CUPTI_ERROR_INVALID_PARAMETER)
SAME_VALUE(CUPTI_ERROR_MAX_LIMIT_REACHED)
SAME_VALUE(CUPTI_ERROR_NOT_INITIALIZED)
SAME_VALUE(CUPTI_ERROR_INVALID_KIND)
SAME_VALUE(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED)
SAME_VALUE(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE)
SAME_VALUE(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES)
SAME_VALUE(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS)
SAME_VALUE(CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED)
SAME_VALUE(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
SAME_VALUE(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
SAME_VALUE(CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES)
#if CUDA_VERSION >= 13000
SAME_VALUE(CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED)
SAME_VALUE(CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED)
SAME_VALUE(CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED)
SAME_VALUE(CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED)
SAME_VALUE(CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED)
#endif
SAME_VALUE(CUPTI_ERROR_UNKNOWN)
SAME_VALUE(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_READ)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_WRITE)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_ATOMIC)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_PREFETCH)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_EVICTION)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_ACCESS_COUNTERS)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_POLICY)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_OUT_OF_MEMORY)
SAME_VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_EVICTION)
SAME_VALUE(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED)

// --- Layouts. CUPTI_API_VERSION 26 (CUDA 12.8) brought the longer record; what we read of it must be the same.
#define SAME_MEMBER(real, declared, member)                                    \
  static_assert(offsetof(ours::declared, member) == offsetof(::real, member)); \
  static_assert(sizeof(ours::declared::member) == sizeof(::real::member));
#define SAME_RECORD(real)                                             \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, kind)        \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, counterKind) \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, value)       \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, start)       \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, end)         \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, address)     \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, srcId)       \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, dstId)       \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, streamId)    \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, processId)   \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, flags)       \
  SAME_MEMBER(real, CUpti_ActivityUnifiedMemoryCounter2, pad)
SAME_RECORD(CUpti_ActivityUnifiedMemoryCounter2)
static_assert(sizeof(ours::CUpti_ActivityUnifiedMemoryCounter2) == sizeof(::CUpti_ActivityUnifiedMemoryCounter2));
#if CUPTI_API_VERSION >= 26
SAME_RECORD(CUpti_ActivityUnifiedMemoryCounter3)
static_assert(sizeof(::CUpti_ActivityUnifiedMemoryCounter3) == sizeof(::CUpti_ActivityUnifiedMemoryCounter2) + 40);
static_assert(offsetof(::CUpti_ActivityUnifiedMemoryCounter3, processors) ==
              sizeof(::CUpti_ActivityUnifiedMemoryCounter2));
#endif
#define SAME_CONFIG(member) \
  SAME_MEMBER(CUpti_ActivityUnifiedMemoryCounterConfig, CUpti_ActivityUnifiedMemoryCounterConfig, member)
SAME_CONFIG(scope)
SAME_CONFIG(kind)
SAME_CONFIG(deviceId)
SAME_CONFIG(enable)
static_assert(sizeof(ours::CUpti_ActivityUnifiedMemoryCounterConfig) ==
              sizeof(::CUpti_ActivityUnifiedMemoryCounterConfig));
SAME_MEMBER(CUpti_Activity, CUpti_Activity, kind)

// --- Signatures.
#define REPLACED(real, declared) \
  template <>                    \
  struct Ours<real> {            \
    using type = declared;       \
  };
REPLACED(::CUctx_st, um::driver::CUctx_st)
REPLACED(::CUpti_Activity, ours::CUpti_Activity)
REPLACED(::CUpti_ActivityUnifiedMemoryCounterConfig, ours::CUpti_ActivityUnifiedMemoryCounterConfig)
REPLACED(::CUptiResult, ours::CUptiResult)
REPLACED(::CUpti_ActivityKind, ours::CUpti_ActivityKind)
REPLACED(::CUpti_CallbackDomain, ours::CUpti_CallbackDomain)
REPLACED(std::remove_pointer_t<::CUpti_SubscriberHandle>, ours::CUpti_Subscriber_st)
static_assert(std::is_same_v<std::underlying_type_t<ours::CUptiResult>, std::underlying_type_t<::CUptiResult>>);
static_assert(sizeof(ours::CUpti_ActivityKind) == sizeof(::CUpti_ActivityKind));
static_assert(sizeof(ours::CUpti_CallbackDomain) == sizeof(::CUpti_CallbackDomain));

#define COMPARED(name, symbol, ...) \
  static_assert(std::is_same_v<Ours<decltype(&::symbol)>::type, decltype(ours::Library::name)>);
UM_CUPTI_FUNCTIONS(COMPARED)

int main() {
  std::printf("CUDA %d.%d: CUPTI API %d compared\n", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, CUPTI_API_VERSION);
  return 0;
}
