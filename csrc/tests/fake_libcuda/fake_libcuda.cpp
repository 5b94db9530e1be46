// A driver library named libcuda.so.1 that exports cuGetProcAddress_v2 alone. It finds functions by the rule that
// cuda.h gives for cuGetProcAddress: the newest form that is not newer than the version asked for;
// CUDA_ERROR_INVALID_VALUE when that is newer than the driver; success with a null pointer when there is none. Most
// functions only record that they were called.
#include "fake_libcuda.h"

#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT FakeLibcuda fake_libcuda;
FakeLibcuda fake_libcuda;

namespace um::driver {
namespace {

template <Function function, class... Parameters>
CUresult recorded(Parameters...) {
  fake_libcuda.last_called = static_cast<int>(function);
  return CUDA_SUCCESS;
}
template <>
CUresult recorded<Function::init>(unsigned) {
  fake_libcuda.last_called = static_cast<int>(Function::init);
  ++fake_libcuda.init_calls;
  return fake_libcuda.init_result;
}
template <>
CUresult recorded<Function::driver_get_version>(int* version) {
  fake_libcuda.last_called = static_cast<int>(Function::driver_get_version);
  if (version != nullptr) *version = fake_libcuda.version;
  return CUDA_SUCCESS;
}
template <>
CUresult recorded<Function::device_get_count>(int* count) {
  fake_libcuda.last_called = static_cast<int>(Function::device_get_count);
  if (count != nullptr) *count = fake_libcuda.device_count;
  return CUDA_SUCCESS;
}
// Knows one code that our own list lacks, and not the others.
template <>
CUresult recorded<Function::get_error_name>(CUresult error, const char** name) {
  fake_libcuda.last_called = static_cast<int>(Function::get_error_name);
  if (error != 102) return CUDA_ERROR_INVALID_VALUE;
  *name = "CUDA_ERROR_DEVICE_NOT_LICENSED";
  return CUDA_SUCCESS;
}

CUresult other_form() {
  fake_libcuda.last_called = FakeLibcuda::kOtherForm;
  return CUDA_SUCCESS;
}

struct Form {
  const char* symbol;
  int version;
  void* function;
};

#define RECORDED(name, symbol, version, ...) \
  {#symbol, version, reinterpret_cast<void*>(static_cast<decltype(Table::name)>(recorded<Function::name>))},
#define OTHER(symbol, version) {#symbol, version, reinterpret_cast<void*>(other_form)}
const Form kForms[] = {
    UM_DRIVER_FUNCTIONS(RECORDED)
    // The forms of the same symbols that nobody should get (cudaTypedefs.h of CUDA 13).
    OTHER(cuDeviceTotalMem, 2000),
    OTHER(cuDevicePrimaryCtxRelease, 7000),
    OTHER(cuMemGetInfo, 2000),
    OTHER(cuMemAlloc, 2000),
    OTHER(cuMemFree, 2000),
    OTHER(cuMemAdvise, 8000),
    OTHER(cuMemPrefetchAsync, 8000),
    OTHER(cuMemcpyHtoDAsync, 2000),
    OTHER(cuMemcpyDtoHAsync, 2000),
    OTHER(cuStreamDestroy, 2000),
    OTHER(cuEventDestroy, 2000),
    OTHER(cuEventElapsedTime, 12080),
    OTHER(cuCtxSynchronize, 13000),
};

}  // namespace
}  // namespace um::driver

EXPORT um::driver::CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags,
                                                unsigned* /*status*/) {
  using namespace um::driver;
  *function = nullptr;
  if (version > fake_libcuda.version) return CUDA_ERROR_INVALID_VALUE;
  if (std::strcmp(symbol, fake_libcuda.absent_symbol) == 0) return CUDA_SUCCESS;
  int newest = 0;
  for (const Form& form : kForms) {
    if (std::strcmp(symbol, form.symbol) != 0 || form.version > version || form.version <= newest) continue;
    newest = form.version;
    *function = form.function;
  }
  constexpr uint64_t legacy_stream = 1;
  if (*function != nullptr && flags != legacy_stream) *function = reinterpret_cast<void*>(other_form);
  return CUDA_SUCCESS;
}
