// What of CUPTI's ABI the collector uses, declared here so that no header of CUDA's toolkit is needed to build. The
// names are CUPTI's own; tests/cupti/conformance.cpp compares them with the real cupti.h of CUDA 12 and 13.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver/types.h"

namespace um::cupti {

enum CUptiResult : unsigned {
  CUPTI_SUCCESS = 0,
  CUPTI_ERROR_INVALID_PARAMETER = 1,
  CUPTI_ERROR_MAX_LIMIT_REACHED = 12,  // of cuptiActivityGetNextRecord: the end of the buffer
  CUPTI_ERROR_NOT_INITIALIZED = 15,
  CUPTI_ERROR_INVALID_KIND = 21,  // of cuptiActivityGetNextRecord: a record that is not whole
  CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED = 28,
  CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE = 29,
  CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES = 30,
  CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS = 31,
  CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED = 33,
  CUPTI_ERROR_INSUFFICIENT_PRIVILEGES = 35,
  CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39,
  CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES = 40,
  // Newer than CUDA 12.2's header, whose libraries never give them.
  CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED = 41,
  CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED = 42,
  CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED = 43,
  CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED = 44,
  CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED = 45,
  CUPTI_ERROR_UNKNOWN = 999,
};

enum CUpti_ActivityKind : unsigned { CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER = 25 };

enum CUpti_ActivityFlag : unsigned { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 };

enum CUpti_ActivityUnifiedMemoryCounterScope : unsigned {
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES = 2
};

enum CUpti_ActivityUnifiedMemoryCounterKind : unsigned {
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD = 1,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH = 2,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT = 3,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT = 4,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING = 5,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING = 6,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP = 7,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD = 8,
};

enum CUpti_ActivityUnifiedMemoryAccessType : unsigned {
  CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_READ = 1,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_WRITE = 2,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_ATOMIC = 3,
};

enum CUpti_ActivityUnifiedMemoryMigrationCause : unsigned {
  CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER = 1,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE = 2,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_PREFETCH = 3,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_EVICTION = 4,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_ACCESS_COUNTERS = 5,
};

enum CUpti_ActivityUnifiedMemoryRemoteMapCause : unsigned {
  CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_POLICY = 3,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_OUT_OF_MEMORY = 4,
  CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_EVICTION = 5,
};

// Each record begins with its kind, and lies on 8 bytes.
struct CUpti_Activity {
  CUpti_ActivityKind kind;
};

// The record as CUDA 12.0 to 12.6 write it. Since 12.8 it is ..Counter3, which begins in the same way and has 40 bytes
// more, about the processors of thrashing: this prefix is all that is read, and cuptiActivityGetNextRecord, which knows
// its own version's records, is what goes from one to the next.
struct CUpti_ActivityUnifiedMemoryCounter2 {
  CUpti_ActivityKind kind;
  CUpti_ActivityUnifiedMemoryCounterKind counterKind;
  uint64_t value;
  uint64_t start;
  uint64_t end;
  uint64_t address;
  uint32_t srcId;
  uint32_t dstId;
  uint32_t streamId;
  uint32_t processId;
  uint32_t flags;
  uint32_t pad;
};

struct CUpti_ActivityUnifiedMemoryCounterConfig {
  CUpti_ActivityUnifiedMemoryCounterScope scope;
  CUpti_ActivityUnifiedMemoryCounterKind kind;
  uint32_t deviceId;
  uint32_t enable;
};

struct CUpti_Subscriber_st;
using CUpti_SubscriberHandle = CUpti_Subscriber_st*;
enum CUpti_CallbackDomain : unsigned;
using CUpti_CallbackId = uint32_t;
using CUpti_CallbackFunc = void (*)(void* user_data, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                    const void* data);
using CUpti_BuffersCallbackRequestFunc = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using CUpti_BuffersCallbackCompleteFunc = void (*)(driver::CUcontext context, uint32_t stream, uint8_t* buffer,
                                                   size_t bytes, size_t valid_bytes);

// The first CUPTI of CUDA 12, which is the first whose driver the core can use (cupti_version.h).
inline constexpr uint32_t kOldestVersion = 19;

// X(name, symbol, parameters...): every function returns a CUptiResult. All are in the libraries of CUDA 12.0 to 13.2.
#define UM_CUPTI_FUNCTIONS(X)                                                                                    \
  X(get_version, cuptiGetVersion, uint32_t* version)                                                             \
  X(get_result_string, cuptiGetResultString, CUptiResult result, const char** text)                              \
  X(subscribe, cuptiSubscribe, CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback, void* user_data) \
  X(unsubscribe, cuptiUnsubscribe, CUpti_SubscriberHandle subscriber)                                            \
  X(register_callbacks, cuptiActivityRegisterCallbacks, CUpti_BuffersCallbackRequestFunc requested,              \
    CUpti_BuffersCallbackCompleteFunc completed)                                                                 \
  X(configure, cuptiActivityConfigureUnifiedMemoryCounter, CUpti_ActivityUnifiedMemoryCounterConfig* counters,   \
    uint32_t count)                                                                                              \
  X(enable, cuptiActivityEnable, CUpti_ActivityKind kind)                                                        \
  X(disable, cuptiActivityDisable, CUpti_ActivityKind kind)                                                      \
  X(flush_all, cuptiActivityFlushAll, uint32_t flags)                                                            \
  X(get_next_record, cuptiActivityGetNextRecord, uint8_t* buffer, size_t valid_bytes, CUpti_Activity** record)   \
  X(get_dropped, cuptiActivityGetNumDroppedRecords, driver::CUcontext context, uint32_t stream, size_t* dropped) \
  X(get_timestamp, cuptiGetTimestamp, uint64_t* timestamp)

}  // namespace um::cupti
