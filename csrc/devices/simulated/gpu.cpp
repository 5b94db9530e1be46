#include "devices/simulated/gpu.h"

#include <sys/mman.h>

#include <algorithm>

#include "devices/simulated/device.h"
#include "driver/device_hooks.h"

namespace um::simulator {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the driver's types

void Gpu::call(Function function) {
  current_ = static_cast<size_t>(function);
  ++counts_[current_].calls;
  counts_[current_].ns += costs_[current_].ns;
  clock.call(costs_[current_].ns);
}

void Gpu::charge_bytes(uint64_t bytes) {
  constexpr double kMiB = 1 << 20;
  const auto more_ns =
      static_cast<int64_t>(static_cast<double>(bytes) / kMiB * static_cast<double>(costs_[current_].ns_per_mib));
  counts_[current_].ns += more_ns;
  clock.call(more_ns);
}

void Gpu::charge_mappings(uint64_t count) {
  const int64_t more_ns = costs_[current_].ns * (static_cast<int64_t>(count) - 1);
  counts_[current_].ns += more_ns;
  clock.call(more_ns);
}

void Gpu::end_call() {
  const int64_t waited_ns = queues.take_waited_ns();
  if (waited_ns == 0) return;
  ++counts_[current_].waits;
  counts_[current_].wait_ns += waited_ns;
}

namespace {

Gpu& gpu() { return *current_space()->gpu; }
Queues& queues() { return gpu().queues; }
CUresult done_if(bool holds) { return holds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

// ---- the device -----------------------------------------------------------------------------------------------------

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult device_primary_ctx_release(CUdevice device) {
  simulated()->hooks->close(device);
  return CUDA_SUCCESS;
}

CUresult ctx_synchronize() {
  queues().wait(queues().end_ns());
  return CUDA_SUCCESS;
}

// ---- streams and events ---------------------------------------------------------------------------------------------

CUresult stream_create(CUstream* stream, unsigned) { return queue_calls::stream_create(queues(), stream); }
CUresult stream_destroy(CUstream stream) { return queue_calls::stream_destroy(queues(), stream); }
CUresult stream_query(CUstream stream) { return queue_calls::stream_query(queues(), stream); }
CUresult stream_synchronize(CUstream stream) { return queue_calls::stream_synchronize(queues(), stream); }
CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
  return queue_calls::stream_wait_event(queues(), stream, event);
}
CUresult event_create(CUevent* event, unsigned) { return queue_calls::event_create(queues(), event); }
CUresult event_destroy(CUevent event) { return queue_calls::event_destroy(queues(), event); }
CUresult event_record(CUevent event, CUstream stream) { return queue_calls::event_record(queues(), event, stream); }
CUresult event_query(CUevent event) { return queue_calls::event_query(queues(), event); }
CUresult event_synchronize(CUevent event) { return queue_calls::event_synchronize(queues(), event); }
CUresult event_elapsed_time(float* milliseconds, CUevent first, CUevent second) {
  return queue_calls::event_elapsed_time(queues(), milliseconds, first, second);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

CUresult mem_address_reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  uint64_t first = 0;
  const CUresult result = gpu().mappings.reserve(bytes, &first);
  *address = first;
  return result;
}

CUresult mem_address_free(CUdeviceptr address, size_t bytes) { return gpu().mappings.free(address, bytes); }

CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                    unsigned long long) {
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  gpu().charge_bytes(bytes);
  uint64_t made = 0;
  const CUresult result = gpu().mappings.create(bytes, &made);
  *handle = made;
  return result;
}

CUresult mem_release(CUmemGenericAllocationHandle handle) { return gpu().mappings.release(handle); }

CUresult mem_map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  gpu().charge_bytes(bytes);
  return gpu().mappings.map(address, bytes, handle);
}

CUresult mem_unmap(CUdeviceptr address, size_t bytes) {
  const uint64_t count = gpu().mappings.count(address, bytes);
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  gpu().charge_mappings(count);
  gpu().mappings.unmap(address, bytes);
  return CUDA_SUCCESS;
}

CUresult mem_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
  const uint64_t count = gpu().mappings.count(address, bytes);
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  gpu().charge_mappings(count);
  return CUDA_SUCCESS;
}

CUresult mem_get_allocation_granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kBlockBytes;
  return CUDA_SUCCESS;
}

// Page-locking waits for the device (CUDA programming guide, implicit synchronization); the emulated device's does not.
void page_lock() {
  if (!queues().synchronous()) queues().wait(queues().end_ns());
}

// Of this machine's address space, which takes no memory until somebody uses it.
CUresult mem_host_alloc(void** address, size_t bytes, unsigned) {
  page_lock();
  gpu().charge_bytes(bytes);
  *address = gpu().host.take(bytes);
  return *address == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult mem_free_host(void* address) {
  page_lock();
  return done_if(gpu().host.give(address));
}

CUresult memcpy_htod_async(CUdeviceptr, const void*, size_t bytes, CUstream stream) {
  return queue_calls::copy(queues(), stream, 0, bytes);
}
CUresult memcpy_dtoh_async(void*, CUdeviceptr, size_t bytes, CUstream stream) {
  return queue_calls::copy(queues(), stream, 1, bytes);
}

// ---- the table ------------------------------------------------------------------------------------------------------

// The function that a slot had, after it was counted and its time has passed.
template <Function kFunction, class... Parameters>
struct Charged {
  static inline CUresult (*work)(Parameters...) = nullptr;
  static CUresult call(Parameters... parameters) {
    const Space* const space = current_space();
    Gpu* const called = space != nullptr ? space->gpu : nullptr;  // it outlives a space that the call closes
    if (called == nullptr) return work(parameters...);
    called->call(kFunction);
    const CUresult result = work(parameters...);
    called->end_call();
    return result;
  }
};

template <Function kFunction, class... Parameters>
void charge(CUresult (*&slot)(Parameters...)) {
  Charged<kFunction, Parameters...>::work = slot;
  slot = Charged<kFunction, Parameters...>::call;
}

}  // namespace

// ---- host memory ----------------------------------------------------------------------------------------------------

void* HostRanges::take(uint64_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  ranges_.emplace(address, bytes);
  return address;
}

bool HostRanges::give(void* address) {
  const auto found = ranges_.find(address);
  if (found == ranges_.end()) return false;
  munmap(address, found->second);
  ranges_.erase(found);
  return true;
}

HostRanges::~HostRanges() {
  while (!ranges_.empty()) give(ranges_.begin()->first);
}

}  // namespace um::simulator

namespace um::driver {

const Driver* simulated_gpu() {
  using namespace um::simulator;  // NOLINT(google-build-using-namespace)
  static const Driver driver = [] {
    Driver made{"simulated GPU", simulated()->call, {}, nullptr};
    Table& call = made.call;
    call.device_get_attribute = device_get_attribute;
    call.device_primary_ctx_release = device_primary_ctx_release;
    call.ctx_synchronize = ctx_synchronize;
    call.stream_create = stream_create;
    call.stream_destroy = stream_destroy;
    call.stream_query = stream_query;
    call.stream_synchronize = stream_synchronize;
    call.stream_wait_event = stream_wait_event;
    call.event_create = event_create;
    call.event_destroy = event_destroy;
    call.event_record = event_record;
    call.event_query = event_query;
    call.event_synchronize = event_synchronize;
    call.event_elapsed_time = event_elapsed_time;
    call.mem_address_reserve = mem_address_reserve;
    call.mem_address_free = mem_address_free;
    call.mem_create = mem_create;
    call.mem_release = mem_release;
    call.mem_map = mem_map;
    call.mem_unmap = mem_unmap;
    call.mem_set_access = mem_set_access;
    call.mem_get_allocation_granularity = mem_get_allocation_granularity;
    call.mem_host_alloc = mem_host_alloc;
    call.mem_free_host = mem_free_host;
    call.memcpy_htod_async = memcpy_htod_async;
    call.memcpy_dtoh_async = memcpy_dtoh_async;
#define UM_DRIVER_CHARGE(name, symbol, version, ...) charge<Function::name>(call.name);
    UM_DRIVER_FUNCTIONS(UM_DRIVER_CHARGE)
#undef UM_DRIVER_CHARGE
    return made;
  }();
  return &driver;
}

const Driver* simulated_synchronous() {
  static const Driver driver = [] {
    Driver made{"simulated", simulated_gpu()->call, {}, simulated()->hooks};
    made.call.device_primary_ctx_release = simulated()->call.device_primary_ctx_release;  // the hooks close it
    return made;
  }();
  return &driver;
}

}  // namespace um::driver
