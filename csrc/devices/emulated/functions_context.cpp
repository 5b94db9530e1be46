// Driver functions about devices and contexts.
#include <cstdio>

#include "devices/emulated/call.h"
#include "driver/errors.h"

namespace um::emulated {

thread_local int current_ordinal = -1;

}  // namespace um::emulated

namespace um::emulated::functions {

CUresult init(unsigned flags) { return done_if(flags == 0); }

CUresult driver_get_version(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;  // the table's newest functions are all here
  return CUDA_SUCCESS;
}

CUresult get_error_name(CUresult error, const char** name) {
  *name = error_name(error);
  return done_if(*name != nullptr);
}

CUresult get_error_string(CUresult error, const char** message) {
  // The one call that fails here: mappings of blocks whose neighbours are unlike them are limited in number.
  *message = error == CUDA_ERROR_OPERATING_SYSTEM
                 ? "the kernel refused to map memory of the emulated device: raise vm.max_map_count"
                 : error_message(error);
  return done_if(*message != nullptr);
}

CUresult device_get_count(int* count) {
  *count = kMostDevices;
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
  const Call call(Function::device_get, ordinal);
  if (call.device != nullptr) *device = ordinal;
  return call.result;
}

CUresult device_get_name(char* name, int name_bytes, CUdevice device) {
  const Call call(Function::device_get_name, device);
  if (!call.failed()) std::snprintf(name, static_cast<size_t>(name_bytes), "umadvise emulated device");
  return call.result;
}

CUresult device_total_mem(size_t* bytes, CUdevice device) {
  const Call call(Function::device_total_mem, device);
  if (!call.failed()) *bytes = call.device->space.blocks.device_tier.bytes();
  return call.result;
}

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const Call call(Function::device_get_attribute, device);
  if (call.failed()) return call.result;
  *value = attribute == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY ||
           attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS ||
           attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
           attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult device_primary_ctx_retain(CUcontext* context, CUdevice device) {
  const Call call(Function::device_primary_ctx_retain, device);
  if (!call.failed()) *context = reinterpret_cast<CUcontext>(call.device);
  return call.result;
}

CUresult device_primary_ctx_release(CUdevice device) {
  return Call(Function::device_primary_ctx_release, device).result;
}

CUresult ctx_set_current(CUcontext context) {
  if (context == nullptr) {
    current_ordinal = -1;
    return CUDA_SUCCESS;
  }
  for (int ordinal = 0; ordinal < kMostDevices; ++ordinal) {
    if (reinterpret_cast<CUcontext>(device_at(ordinal)) != context) continue;
    const Call call(Function::ctx_set_current, ordinal);
    if (!call.failed()) current_ordinal = ordinal;
    return call.result;
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult ctx_get_current(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(device_at(current_ordinal));
  return CUDA_SUCCESS;
}

CUresult ctx_synchronize() {
  const Call call(Function::ctx_synchronize);
  if (call.failed()) return call.result;
  if (!left_out(Wait::emulated_ctx_synchronize)) call.device->wait_for_streams();
  return call.outcome();
}

}  // namespace um::emulated::functions
