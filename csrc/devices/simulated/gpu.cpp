#include "devices/simulated/gpu.h"

#include <sys/mman.h>

#include <algorithm>

#include "devices/emulated/hooks.h"
#include "devices/simulated/device.h"

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

void Gpu::wait_until(int64_t end_ns) {
  const int64_t waited_ns = end_ns - clock.host_ns();
  if (waited_ns <= 0) return;
  ++counts_[current_].waits;
  counts_[current_].wait_ns += waited_ns;
  clock.host_waits(end_ns);
}

namespace {

Gpu& gpu() { return *current_space()->gpu; }
Queues& queues() { return gpu().queues; }
CUresult done_if(bool holds) { return holds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

Queues::Stream stream_of(CUstream stream) {
  return stream == legacy_stream() ? 0 : reinterpret_cast<Queues::Stream>(stream);
}

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
  gpu().wait_until(queues().end_ns());
  return CUDA_SUCCESS;
}

// ---- streams and events ---------------------------------------------------------------------------------------------

CUresult stream_create(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(queues().create_stream());
  return CUDA_SUCCESS;
}

CUresult stream_destroy(CUstream stream) { return done_if(queues().destroy_stream(stream_of(stream))); }

CUresult stream_query(CUstream stream) {
  if (!queues().has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  return queues().end_ns(stream_of(stream)) <= gpu().clock.host_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult stream_synchronize(CUstream stream) {
  if (!queues().has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  gpu().wait_until(queues().end_ns(stream_of(stream)));
  return CUDA_SUCCESS;
}

int64_t* time_of(CUevent event) { return queues().time_ns(reinterpret_cast<Queues::Event>(event)); }

CUresult event_create(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(queues().create_event());
  return CUDA_SUCCESS;
}

CUresult event_destroy(CUevent event) {
  return done_if(queues().destroy_event(reinterpret_cast<Queues::Event>(event)));
}

CUresult event_record(CUevent event, CUstream stream) {
  int64_t* time_ns = time_of(event);
  if (time_ns == nullptr || !queues().has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  *time_ns = queues().end_ns(stream_of(stream));
  return CUDA_SUCCESS;
}

CUresult event_query(CUevent event) {
  const int64_t* time_ns = time_of(event);
  if (time_ns == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return *time_ns <= gpu().clock.host_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(CUevent event) {
  const int64_t* time_ns = time_of(event);
  if (time_ns == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  gpu().wait_until(*time_ns);
  return CUDA_SUCCESS;
}

CUresult event_elapsed_time(float* milliseconds, CUevent first, CUevent second) {
  const int64_t *first_ns = time_of(first), *second_ns = time_of(second);
  if (first_ns == nullptr || second_ns == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (std::max(*first_ns, *second_ns) > gpu().clock.host_ns()) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(*second_ns - *first_ns) * 1e-6);
  return CUDA_SUCCESS;
}

CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
  const int64_t* time_ns = time_of(event);
  if (time_ns == nullptr || !queues().has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  queues().hold(stream_of(stream), *time_ns);
  return CUDA_SUCCESS;
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
  gpu().charge_bytes(bytes);
  return gpu().mappings.unmap(address, bytes);
}

CUresult mem_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
  gpu().charge_bytes(bytes);
  return gpu().mappings.set_access(address, bytes);
}

CUresult mem_get_allocation_granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kBlockBytes;
  return CUDA_SUCCESS;
}

// Of this machine's address space, which takes no memory until somebody uses it. Page-locking waits for the device
// (CUDA programming guide, implicit synchronization).
CUresult mem_host_alloc(void** address, size_t bytes, unsigned) {
  gpu().wait_until(queues().end_ns());
  gpu().charge_bytes(bytes);
  *address = gpu().host.take(bytes);
  return *address == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult mem_free_host(void* address) {
  gpu().wait_until(queues().end_ns());
  return done_if(gpu().host.give(address));
}

CUresult copy(CUstream stream, int direction, size_t bytes) {
  if (!queues().has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  queues().copy(stream_of(stream), direction, static_cast<int64_t>(bytes));
  return CUDA_SUCCESS;
}

CUresult memcpy_htod_async(CUdeviceptr, const void*, size_t bytes, CUstream stream) { return copy(stream, 0, bytes); }
CUresult memcpy_dtoh_async(void*, CUdeviceptr, size_t bytes, CUstream stream) { return copy(stream, 1, bytes); }

// ---- the table ------------------------------------------------------------------------------------------------------

// The function that a slot had, after it was counted and its time has passed.
template <Function kFunction, class... Parameters>
struct Charged {
  static inline CUresult (*work)(Parameters...) = nullptr;
  static CUresult call(Parameters... parameters) {
    Space* space = current_space();
    if (space != nullptr && space->gpu != nullptr) space->gpu->call(kFunction);
    return work(parameters...);
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

}  // namespace um::driver
