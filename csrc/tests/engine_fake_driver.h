// A driver that is neither CUDA nor the emulated device: ordinary memory behind the table, no hooks, and a log of what
// the core asked for. For what only happens on CUDA, and for ThreadSanitizer, under which the emulated device cannot
// reserve its address range.
#pragma once

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "check.h"
#include "engine/device.h"

namespace fake {

using namespace um::driver;  // NOLINT(google-build-using-namespace): a driver speaks of its own types

struct Moved {
  uint64_t address, bytes;
  bool to_host;
};

struct State {
  std::mutex mutex;
  std::map<uint64_t, uint64_t> ranges;  // what the driver gave -> bytes
  std::vector<CUmem_advise> advice;
  std::vector<Moved> prefetches;
  uint64_t offset_bytes = 0;  // from a multiple of 2 MiB: drivers promise none
  uint64_t limit_bytes = ~uint64_t{0}, used_bytes = 0;
};
inline State state;
inline thread_local CUcontext current = nullptr;
inline const CUcontext kContext = reinterpret_cast<CUcontext>(uintptr_t{0x1000});

inline CUresult allocate(CUdeviceptr* out, size_t bytes) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (current != kContext) return CUDA_ERROR_INVALID_CONTEXT;
  if (state.used_bytes + bytes > state.limit_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t mapped = bytes + 2 * um::kBlockBytes;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(base != MAP_FAILED);
  const uint64_t aligned = (reinterpret_cast<uint64_t>(base) + um::kBlockBytes - 1) / um::kBlockBytes * um::kBlockBytes;
  *out = aligned + state.offset_bytes;
  state.ranges[*out] = bytes;
  state.used_bytes += bytes;
  return CUDA_SUCCESS;
}

inline CUresult advised(CUmem_advise advice) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.advice.push_back(advice);
  return CUDA_SUCCESS;
}

inline CUresult moved(CUdeviceptr address, size_t bytes, bool to_host) {
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.prefetches.push_back({address, bytes, to_host});
  return CUDA_SUCCESS;
}

// Captureless functions only: the table holds plain pointers.
inline Table table() {
  Table made = kMissingTable;
  made.ctx_get_current = [](CUcontext* out) {
    *out = current;
    return CUDA_SUCCESS;
  };
  made.ctx_set_current = [](CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
  };
  made.device_primary_ctx_release = [](CUdevice) { return CUDA_SUCCESS; };
  made.mem_get_info = [](size_t* free_bytes, size_t* total_bytes) {
    *total_bytes = size_t{64} << 20;
    *free_bytes = *total_bytes;
    return CUDA_SUCCESS;
  };
  made.mem_alloc = allocate;
  made.mem_alloc_managed = [](CUdeviceptr* out, size_t bytes, unsigned) { return allocate(out, bytes); };
  made.mem_free = [](CUdeviceptr address) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    const auto found = state.ranges.find(address);
    if (found == state.ranges.end() || current != kContext) return CUDA_ERROR_INVALID_VALUE;
    state.used_bytes -= found->second;
    state.ranges.erase(found);  // its mapping stays: nothing here runs long
    return CUDA_SUCCESS;
  };
  made.mem_advise = [](CUdeviceptr, size_t, CUmem_advise advice, CUmemLocation) { return advised(advice); };
  made.mem_prefetch_async = [](CUdeviceptr address, size_t bytes, CUmemLocation where, unsigned, CUstream) {
    return moved(address, bytes, where.type == CU_MEM_LOCATION_TYPE_HOST);
  };
  made.memcpy_htod_async = [](CUdeviceptr to, const void* from, size_t bytes, CUstream) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
  };
  made.memcpy_dtoh_async = [](void* to, CUdeviceptr from, size_t bytes, CUstream) {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return CUDA_SUCCESS;
  };
  made.stream_synchronize = [](CUstream) { return CUDA_SUCCESS; };
  return made;
}

// A device of 64 MiB; `concurrent` is attribute 89.
inline um_device* open(bool concurrent = true) {
  static const Driver driver{"fake", table(), {}, nullptr};
  um::Backend backend;
  backend.driver = &driver;
  backend.device = 0;
  backend.context = kContext;
  backend.name = "fake device";
  backend.managed_memory = 1;
  backend.concurrent_managed = concurrent;
  backend.total_bytes = uint64_t{64} << 20;
  state.advice.clear();
  state.prefetches.clear();
  return um_device::open(backend);
}

}  // namespace fake
