// What torch's libraries link by name (libcaffe2_nvrtc.so). Where cuGetProcAddress finds a function the name means that
// one, settings and failures included. Modules and their kernels are not there: nothing here runs a GPU's code.
#include <cstdio>

#include "driver/table.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace um::driver;  // NOLINT(google-build-using-namespace): this library is the driver

EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, unsigned*);

namespace {

template <class... Parameters>
CUresult found(Function function, Parameters... parameters) {
  const FunctionInfo& info = kFunctions[static_cast<size_t>(function)];
  void* address = nullptr;
  constexpr uint64_t kLegacyStream = 1;
  if (cuGetProcAddress_v2(info.symbol, &address, info.version, kLegacyStream, nullptr) != CUDA_SUCCESS ||
      address == nullptr) {
    return CUDA_ERROR_NOT_FOUND;
  }
  return reinterpret_cast<CUresult (*)(Parameters...)>(address)(parameters...);
}

}  // namespace

EXPORT CUresult cuCtxGetCurrent(CUcontext* context) { return found(Function::ctx_get_current, context); }
EXPORT CUresult cuCtxSetCurrent(CUcontext context) { return found(Function::ctx_set_current, context); }
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) { return found(Function::device_get, device, ordinal); }
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return found(Function::device_get_attribute, value, attribute, device);
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return found(Function::device_primary_ctx_retain, context, device);
}
EXPORT CUresult cuGetErrorString(CUresult error, const char** message) {
  return found(Function::get_error_string, error, message);
}

#define ABSENT(name)                                                                \
  EXPORT CUresult name() {                                                          \
    std::fprintf(stderr, "the stand-in for libcuda.so.1 does without %s\n", #name); \
    return CUDA_ERROR_NOT_SUPPORTED;                                                \
  }
ABSENT(cuFuncGetAttribute)
ABSENT(cuFuncSetAttribute)
ABSENT(cuFuncSetCacheConfig)
ABSENT(cuLaunchCooperativeKernel)
ABSENT(cuLaunchKernel)
ABSENT(cuLinkAddData_v2)
ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate_v2)
ABSENT(cuModuleGetFunction)
ABSENT(cuModuleLoad)
ABSENT(cuModuleLoadData)
ABSENT(cuModuleLoadDataEx)
ABSENT(cuModuleUnload)
ABSENT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ABSENT(cuTensorMapEncodeTiled)
