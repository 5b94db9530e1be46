// Which devices have a primary context that somebody retains: torch asks before it touches a device.
#include <atomic>

#include "devices/emulated/layout.h"
#include "driver/driver.h"
#include "torch_functions.h"

namespace um::driver {
namespace {

std::atomic<int> retains[emulated::kMostDevices];

}  // namespace

CUresult primary_context_retained(CUcontext* context, CUdevice device) {
  const CUresult result = emulated()->call.device_primary_ctx_retain(context, device);
  if (result == CUDA_SUCCESS) ++retains[device];
  return result;
}

CUresult primary_context_released(CUdevice device) {
  const CUresult result = emulated()->call.device_primary_ctx_release(device);
  if (result == CUDA_SUCCESS) --retains[device];
  return result;
}

}  // namespace um::driver

using namespace um::driver;  // NOLINT(google-build-using-namespace): this library is the driver

extern "C" __attribute__((visibility("default"))) CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags,
                                                                                      int* active) {
  if (device < 0 || device >= um::emulated::kMostDevices) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = retains[device] > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}
