// cuPointerGetAttribute: whose memory lies at an address.
#include "devices/emulated/call.h"
#include "driver/driver.h"
#include "torch_functions.h"

using namespace um::driver;  // NOLINT(google-build-using-namespace): this library is the driver

extern "C" __attribute__((visibility("default"))) CUresult cuPointerGetAttribute(void* value, int attribute,
                                                                                 CUdeviceptr address) {
  // CUpointer_attribute of cuda.h
  enum { kContext = 1, kMemoryType = 2, kDevicePointer = 3, kIsManaged = 8, kDeviceOrdinal = 9 };
  constexpr unsigned kOnDevice = 2;  // CU_MEMORYTYPE_DEVICE
  um::emulated::Device* const device = um::emulated::device_of(address);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case kContext:
      *static_cast<CUcontext*>(value) = reinterpret_cast<CUcontext>(device);
      return CUDA_SUCCESS;
    case kMemoryType:
      *static_cast<unsigned*>(value) = kOnDevice;
      return CUDA_SUCCESS;
    case kDevicePointer:
      *static_cast<CUdeviceptr*>(value) = address;
      return CUDA_SUCCESS;
    case kIsManaged:
      *static_cast<unsigned*>(value) = device->space.managed.holds(address, 1) ? 1 : 0;
      return CUDA_SUCCESS;
    case kDeviceOrdinal:
      *static_cast<int*>(value) = device->ordinal;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
