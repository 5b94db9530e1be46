// A driver library named libcuda.so.1 behind which the emulated device works: real bytes, real page faults, and for the
// core above the seam nothing but a CUDA driver with one device.
#include <cstdint>
#include <cstring>

#include "driver/driver.h"
#include "driver/emulated/hooks.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace um::driver {
namespace {

constexpr uint64_t kCapacityBytes = uint64_t{128} << 20;

CUresult init(unsigned) {
  int32_t ordinal = -1;
  char message[256] = "";
  const um_emulated_options options{kCapacityBytes, 4 * kCapacityBytes, UM_COUNTING_RAW, 0, 0};
  const bool opened = emulated()->hooks->open(&options, &ordinal, message, sizeof(message)) == UM_OK && ordinal == 0;
  return opened ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult device_get_count(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace um::driver

// What a test may ask the device behind the driver.
EXPORT const um::emulated::Hooks* emulated_libcuda_hooks(void) { return um::driver::emulated()->hooks; }

EXPORT um::driver::CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t, unsigned*) {
  using namespace um::driver;
  *function = nullptr;
  Table call = emulated()->call;
  call.init = init;
  call.device_get_count = device_get_count;
#define FIND(name, its_symbol, its_version, ...)                            \
  if (std::strcmp(symbol, #its_symbol) == 0 && version == its_version &&    \
      emulated()->reason[static_cast<size_t>(Function::name)] == nullptr) { \
    *function = reinterpret_cast<void*>(call.name);                         \
  }
  UM_DRIVER_FUNCTIONS(FIND)
  return CUDA_SUCCESS;
}
