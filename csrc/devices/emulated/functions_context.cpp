// Driver functions about devices and contexts.
#include <cstdio>

#include "devices/emulated/call.h"
#include "driver/errors.h"

namespace um::emulated {

thread_local int current_ordinal = -1;

namespace {

CUresult init(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult driver_get_version(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;  // the table's newest functions are all here
  return CUDA_SUCCESS;
}

CUresult get_error_name(CUresult error, const char** name) {
  *name = error_name(error);
  return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult get_error_string(CUresult error, const char** message) {
  // The one call that fails here: mappings of blocks whose neighbours are unlike them are limited in number.
  *message = error == CUDA_ERROR_OPERATING_SYSTEM
                 ? "the kernel refused to map memory of the emulated device: raise vm.max_map_count"
                 : error_message(error);
  return *message != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult device_get_count(int* count) {
  *count = kMostDevices;
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
  Call call(Function::device_get, device_at(ordinal));
  if (call.device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return call.result;
}

CUresult device_get_name(char* name, int name_bytes, CUdevice device) {
  Call call(Function::device_get_name, device_at(device));
  if (call.failed()) return call.result;
  std::snprintf(name, static_cast<size_t>(name_bytes), "umadvise emulated device");
  return CUDA_SUCCESS;
}

CUresult device_total_mem(size_t* bytes, CUdevice device) {
  Call call(Function::device_total_mem, device_at(device));
  if (call.failed()) return call.result;
  *bytes = call.device->space.capacity_bytes();
  return CUDA_SUCCESS;
}

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  Call call(Function::device_get_attribute, device_at(device));
  if (call.failed()) return call.result;
  *value = attribute == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY ||
           attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS ||
           attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
           attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult device_primary_ctx_retain(CUcontext* context, CUdevice device) {
  Call call(Function::device_primary_ctx_retain, device_at(device));
  if (!call.failed()) *context = reinterpret_cast<CUcontext>(call.device);
  return call.result;
}

CUresult device_primary_ctx_release(CUdevice device) {
  return Call(Function::device_primary_ctx_release, device_at(device)).result;
}

CUresult ctx_set_current(CUcontext context) {
  if (context == nullptr) {
    current_ordinal = -1;
    return CUDA_SUCCESS;
  }
  for (int ordinal = 0; ordinal < kMostDevices; ++ordinal) {
    if (reinterpret_cast<CUcontext>(device_at(ordinal)) != context) continue;
    Call call(Function::ctx_set_current, device_at(ordinal));
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
  Call call(Function::ctx_synchronize);
  if (call.failed()) return call.result;
  if (!left_out(Wait::emulated_ctx_synchronize)) call.device->wait_for_streams();
  return call.outcome();
}

}  // namespace

void fill_context_functions(Table& table) {
  table.init = init;
  table.driver_get_version = driver_get_version;
  table.get_error_name = get_error_name;
  table.get_error_string = get_error_string;
  table.device_get_count = device_get_count;
  table.device_get = device_get;
  table.device_get_name = device_get_name;
  table.device_total_mem = device_total_mem;
  table.device_get_attribute = device_get_attribute;
  table.device_primary_ctx_retain = device_primary_ctx_retain;
  table.device_primary_ctx_release = device_primary_ctx_release;
  table.ctx_set_current = ctx_set_current;
  table.ctx_get_current = ctx_get_current;
  table.ctx_synchronize = ctx_synchronize;
}

}  // namespace um::emulated
