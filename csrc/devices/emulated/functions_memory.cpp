// Driver functions about memory: allocation, advice, prefetch, discard. Arguments that a GPU's driver would refuse are
// refused here.
#include <new>

#include "devices/emulated/call.h"

namespace um::emulated {

namespace {

CUresult mem_get_info(size_t* free_bytes, size_t* total_bytes) {
  Call call(Function::mem_get_info);
  if (call.failed()) return call.result;
  *free_bytes = call.device->space.free_bytes();
  *total_bytes = call.device->space.capacity_bytes();
  return CUDA_SUCCESS;
}

CUresult give_address(CUdeviceptr* out, uint64_t address) {
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult mem_alloc(CUdeviceptr* address, size_t bytes) {
  Call call(Function::mem_alloc);
  if (call.failed()) return call.result;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return give_address(address, call.device->space.allocate_plain(bytes));
}

CUresult mem_alloc_managed(CUdeviceptr* address, size_t bytes, unsigned flags) {
  Call call(Function::mem_alloc_managed);
  if (call.failed()) return call.result;
  if (address == nullptr || bytes == 0 || flags != CU_MEM_ATTACH_GLOBAL) return CUDA_ERROR_INVALID_VALUE;
  return give_address(address, call.device->space.allocate_managed(bytes));
}

CUresult mem_free(CUdeviceptr address) {
  Call call(Function::mem_free, device_of(address));
  if (call.failed()) return call.result;
  call.device->wait_for_streams();  // as a GPU's driver: what they were given may still use the memory
  return call.device->space.free(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Memory of the host that copies go to and from: any is as good as any other here.
CUresult mem_host_alloc(void** address, size_t bytes, unsigned flags) {
  Call call(Function::mem_host_alloc);
  if (call.failed()) return call.result;
  if (address == nullptr || bytes == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *address = ::operator new(bytes, std::nothrow);
  return *address == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult mem_free_host(void* address) {
  Call call(Function::mem_free_host);
  if (call.failed()) return call.result;
  ::operator delete(address);
  return CUDA_SUCCESS;
}

CUresult advise(Device* device, CUdeviceptr address, size_t bytes, CUmem_advise advice, Processor processor) {
  if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ||
      !device->space.managed(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  device->space.charge_call(&um_driver_costs::advise_call_ns);
  device->space.advise(address, bytes, static_cast<Advice>(advice - CU_MEM_ADVISE_SET_READ_MOSTLY), processor);
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

CUresult mem_advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation where) {
  Call call(Function::mem_advise, device_of(address));
  if (call.device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.failed()) return call.result;
  Processor processor{};
  if (!processor_of(*call.device, where, &processor) && location_matters(advice)) return CUDA_ERROR_INVALID_DEVICE;
  return advise(call.device, address, bytes, advice, processor);
}

CUresult prefetch(Device* device, CUdeviceptr address, size_t bytes, Processor to, CUstream stream) {
  if (!device->space.managed(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  device->space.charge_call(&um_driver_costs::prefetch_call_ns);
  return submitted(device->submit(stream_of(stream), [=] { device->space.prefetch(address, bytes, to); }));
}

CUresult mem_prefetch_async(CUdeviceptr address, size_t bytes, CUmemLocation where, unsigned flags, CUstream stream) {
  Call call(Function::mem_prefetch_async, device_of(address));
  if (call.device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (call.failed()) return call.result;
  Processor to{};
  if (!processor_of(*call.device, where, &to)) return CUDA_ERROR_INVALID_DEVICE;
  return prefetch(call.device, address, bytes, to, stream);
}

// Batches: refuse the legacy stream, and location_starts must be 0, then strictly increasing, below count.
bool batch_ok(const Device* device, const CUdeviceptr* addresses, const size_t* bytes, size_t count,
              unsigned long long flags, CUstream stream) {
  if (addresses == nullptr || bytes == nullptr || count == 0 || flags != 0 || stream_of(stream) == nullptr)
    return false;
  for (size_t i = 0; i < count; ++i) {
    if (device_of(addresses[i]) != device || !device_of(addresses[i])->space.managed(addresses[i], bytes[i]))
      return false;
  }
  return true;
}

bool starts_ok(const size_t* starts, size_t location_count, size_t count) {
  if (starts == nullptr || location_count == 0 || location_count > count || starts[0] != 0) return false;
  for (size_t i = 1; i < location_count; ++i) {
    if (starts[i] <= starts[i - 1] || starts[i] >= count) return false;
  }
  return true;
}

CUresult batch(Function function, CUdeviceptr* addresses, size_t* bytes, size_t count, const CUmemLocation* locations,
               const size_t* starts, size_t location_count, unsigned long long flags, CUstream stream, bool discard) {
  Device* device = count > 0 && addresses != nullptr ? device_of(addresses[0]) : nullptr;
  Call call(function, device);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.failed()) return call.result;
  if (!batch_ok(device, addresses, bytes, count, flags, stream)) return CUDA_ERROR_INVALID_VALUE;
  if (locations != nullptr && !starts_ok(starts, location_count, count)) return CUDA_ERROR_INVALID_VALUE;
  size_t location = 0;
  for (size_t i = 0; i < count; ++i) {
    if (discard) {
      const CUdeviceptr address = addresses[i];
      const size_t size = bytes[i];
      if (!device->submit(stream_of(stream), [=] { device->space.discard(address, size); }))
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (locations == nullptr) continue;
    if (location + 1 < location_count && starts[location + 1] == i) ++location;
    Processor to{};
    if (!processor_of(*device, locations[location], &to)) return CUDA_ERROR_INVALID_DEVICE;
    const CUresult result = prefetch(device, addresses[i], bytes[i], to, stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult mem_prefetch_batch_async(CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations,
                                  size_t* location_starts, size_t location_count, unsigned long long flags,
                                  CUstream stream) {
  if (locations == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return batch(Function::mem_prefetch_batch_async, addresses, bytes, count, locations, location_starts, location_count,
               flags, stream, false);
}

CUresult mem_discard_batch_async(CUdeviceptr* addresses, size_t* bytes, size_t count, unsigned long long flags,
                                 CUstream stream) {
  return batch(Function::mem_discard_batch_async, addresses, bytes, count, nullptr, nullptr, 0, flags, stream, true);
}

CUresult mem_discard_and_prefetch_batch_async(CUdeviceptr* addresses, size_t* bytes, size_t count,
                                              CUmemLocation* locations, size_t* location_starts, size_t location_count,
                                              unsigned long long flags, CUstream stream) {
  if (locations == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return batch(Function::mem_discard_and_prefetch_batch_async, addresses, bytes, count, locations, location_starts,
               location_count, flags, stream, true);
}

}  // namespace

void fill_memory_functions(Table& table) {
  table.mem_get_info = mem_get_info;
  table.mem_alloc = mem_alloc;
  table.mem_alloc_managed = mem_alloc_managed;
  table.mem_free = mem_free;
  table.mem_advise = mem_advise;
  table.mem_prefetch_async = mem_prefetch_async;
  table.mem_prefetch_batch_async = mem_prefetch_batch_async;
  table.mem_discard_batch_async = mem_discard_batch_async;
  table.mem_discard_and_prefetch_batch_async = mem_discard_and_prefetch_batch_async;
  table.mem_host_alloc = mem_host_alloc;
  table.mem_free_host = mem_free_host;
}

}  // namespace um::emulated
