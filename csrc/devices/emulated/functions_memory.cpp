// Driver functions about memory: allocation, advice, prefetch, discard. Arguments that a GPU's driver would refuse are
// refused here.
#include <new>
#include <vector>

#include "devices/emulated/call.h"

namespace um::emulated::functions {

namespace {

CUresult give_address(CUdeviceptr* out, uint64_t address) {
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = address;
  return CUDA_SUCCESS;
}

// False: neither this device nor the host.
bool processor_of(const Device& device, CUmemLocation location, Processor* out) {
  *out = location.type == CU_MEM_LOCATION_TYPE_HOST ? Processor::host : Processor::device;
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         (location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == device.ordinal);
}

bool location_matters(CUmem_advise advice) {  // read-mostly ignores it
  return advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
         advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
}

}  // namespace

CUresult mem_get_info(size_t* free_bytes, size_t* total_bytes) {
  const Call call(Function::mem_get_info);
  if (call.failed()) return call.result;
  *free_bytes = call.device->space.ranges.free_bytes();
  *total_bytes = call.device->space.blocks.device_tier.bytes();
  return CUDA_SUCCESS;
}

CUresult mem_alloc(CUdeviceptr* address, size_t bytes) {
  const Call call(Function::mem_alloc);
  if (call.failed()) return call.result;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return give_address(address, call.device->space.ranges.allocate_plain(bytes));
}

CUresult mem_alloc_managed(CUdeviceptr* address, size_t bytes, unsigned flags) {
  const Call call(Function::mem_alloc_managed);
  if (call.failed()) return call.result;
  if (address == nullptr || bytes == 0 || flags != CU_MEM_ATTACH_GLOBAL) return CUDA_ERROR_INVALID_VALUE;
  return give_address(address, call.device->space.ranges.allocate_managed(bytes));
}

CUresult mem_free(CUdeviceptr address) {
  const Call call(Function::mem_free, device_of(address), CUDA_ERROR_INVALID_CONTEXT);
  if (call.failed()) return call.result;
  call.device->wait_for_streams();  // as a GPU's driver: what they were given may still use the memory
  return done_if(call.device->space.ranges.free(address));
}

// Memory of the host that copies go to and from: any is as good as any other here.
CUresult mem_host_alloc(void** address, size_t bytes, unsigned flags) {
  const Call call(Function::mem_host_alloc);
  if (call.failed()) return call.result;
  if (address == nullptr || bytes == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *address = ::operator new(bytes, std::nothrow);
  return *address == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult mem_free_host(void* address) {
  const Call call(Function::mem_free_host);
  if (!call.failed()) ::operator delete(address);
  return call.result;
}

CUresult mem_advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation where) {
  const Call call(Function::mem_advise, address);
  if (call.failed()) return call.result;
  ManagedMemory& managed = call.device->space.managed;
  Processor processor{};
  if (!processor_of(*call.device, where, &processor) && location_matters(advice)) return CUDA_ERROR_INVALID_DEVICE;
  if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ||
      !managed.holds(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  managed.charge_call(&um_driver_costs::advise_call_ns);
  managed.advise(address, bytes, static_cast<Advice>(advice - CU_MEM_ADVISE_SET_READ_MOSTLY), processor);
  return CUDA_SUCCESS;
}

CUresult mem_prefetch_async(CUdeviceptr address, size_t bytes, CUmemLocation where, unsigned flags, CUstream stream) {
  const Call call(Function::mem_prefetch_async, address);
  if (call.failed()) return call.result;
  ManagedMemory& managed = call.device->space.managed;
  Processor to{};
  if (!processor_of(*call.device, where, &to)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != 0 || !managed.holds(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  managed.charge_call(&um_driver_costs::prefetch_call_ns);
  return submitted(call.device->submit(stream_of(stream), [=, &managed] { managed.prefetch(address, bytes, to); }));
}

// Batches refuse the legacy stream.
CUresult mem_prefetch_batch_async(CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations,
                                  size_t* location_starts, size_t location_count, unsigned long long flags,
                                  CUstream stream) {
  if (count == 0 || addresses == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(Function::mem_prefetch_batch_async, addresses[0]);
  if (call.failed()) return call.result;
  if (bytes == nullptr || flags != 0 || stream_of(stream) == nullptr || location_count == 0 ||
      location_starts[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ManagedMemory& managed = call.device->space.managed;
  std::vector<Processor> to(count);
  for (size_t i = 0, location = 0; i < count; ++i) {
    if (location + 1 < location_count && location_starts[location + 1] == i) ++location;
    if (!processor_of(*call.device, locations[location], &to[i])) return CUDA_ERROR_INVALID_DEVICE;
    if (!managed.holds(addresses[i], bytes[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  managed.charge_call(&um_driver_costs::prefetch_call_ns);
  bool done = true;
  for (size_t i = 0; i < count && done; ++i) {
    done = call.device->submit(stream_of(stream), [&managed, address = addresses[i], size = bytes[i], where = to[i]] {
      managed.prefetch(address, size, where);
    });
  }
  return submitted(done);
}

CUresult mem_discard_batch_async(CUdeviceptr* addresses, size_t* bytes, size_t count, unsigned long long flags,
                                 CUstream stream) {
  if (count == 0 || addresses == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Call call(Function::mem_discard_batch_async, addresses[0]);
  if (call.failed()) return call.result;
  if (bytes == nullptr || flags != 0 || stream_of(stream) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ManagedMemory& managed = call.device->space.managed;
  for (size_t i = 0; i < count; ++i) {
    if (!managed.holds(addresses[i], bytes[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  bool done = true;
  for (size_t i = 0; i < count && done; ++i) {
    done = call.device->submit(stream_of(stream),
                               [&managed, address = addresses[i], size = bytes[i]] { managed.discard(address, size); });
  }
  return submitted(done);
}

}  // namespace um::emulated::functions
