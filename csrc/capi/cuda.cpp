// The C ABI of CUDA devices that nobody has opened: the driver is asked, no context is made and no memory taken.
#include <algorithm>
#include <cstdio>
#include <new>
#include <vector>

#include "base/error.h"
#include "capi/guard.h"
#include "cupti/library.h"
#include "driver/driver.h"
#include "driver/errors.h"
#include "memory/names.h"
#include "umadvise.h"

namespace {

using um::Error;
using um::capi::caught;
using um::capi::given;

const um::driver::Table& usable_driver() {
  const char* reason = nullptr;
  const um::driver::Driver* driver = um::driver::libcuda(&reason);
  if (driver == nullptr) throw Error(UM_UNSUPPORTED, std::string("no CUDA device can be used: ") + reason);
  return driver->call;
}

void check(const um::driver::Table& call, um::driver::CUresult result, const char* doing) {
  if (result == um::driver::CUDA_SUCCESS) return;
  throw Error(UM_DRIVER_ERROR, std::string(doing) + " failed: " + um::driver::describe(call, result));
}

um::driver::CUdevice device_at(const um::driver::Table& call, int32_t ordinal) {
  int count = 0;
  check(call, call.device_get_count(&count), "counting the CUDA devices");
  if (ordinal < 0 || ordinal >= count) {
    throw Error(UM_UNSUPPORTED, "there is no CUDA device " + std::to_string(ordinal) + ": the driver sees " +
                                    std::to_string(count) + ", numbered from 0");
  }
  um::driver::CUdevice device = -1;
  check(call, call.device_get(&device, ordinal), "finding the device");
  return device;
}

}  // namespace

um_status um_cuda_describe(int32_t ordinal, um_cuda_device* out) {
  return caught([&] {
    *given(out, "the place for the device's description") = {};
    const um::driver::Table& call = usable_driver();
    const um::driver::CUdevice device = device_at(call, ordinal);
    int count = 0;
    check(call, call.device_get_count(&count), "counting the CUDA devices");
    out->device_count = static_cast<uint32_t>(count);
    check(call, call.device_get_name(out->name, sizeof(out->name), device), "asking for the device's name");
    check(call, call.driver_get_version(&out->driver_version), "asking for the driver's version");
    size_t bytes = 0;
    check(call, call.device_total_mem(&bytes, device), "asking for the device's memory");
    out->total_bytes = bytes;
  });
}

um_status um_cuda_attribute(int32_t ordinal, uint32_t attribute, int32_t* out) {
  return caught([&] {
    *given(out, "the place for the attribute") = UM_UNKNOWN;
    const um::driver::Table& call = usable_driver();
    int value = UM_UNKNOWN;
    const um::driver::CUresult result = call.device_get_attribute(
        &value, static_cast<um::driver::CUdevice_attribute>(attribute), device_at(call, ordinal));
    if (result == um::driver::CUDA_ERROR_INVALID_VALUE) return;  // newer than this driver
    check(call, result, "asking for a device attribute");
    *out = value;
  });
}

um_status um_cupti_describe(um_cupti_library* out) {
  return caught([&] {
    *given(out, "the place for the library's description") = {};
    const char* no_driver = nullptr;
    const um::driver::Driver* driver = um::driver::libcuda(&no_driver);
    int version = 0;
    if (driver != nullptr) check(driver->call, driver->call.driver_get_version(&version), "asking for the version");
    std::string reason;
    const um::cupti::Library* library = um::cupti::library(version, &reason);
    if (library == nullptr) throw Error(UM_UNSUPPORTED, reason);
    std::snprintf(out->path, sizeof(out->path), "%s", library->path.c_str());
    out->version = library->version;
  });
}

uint64_t um_cuda_calls(um_call_count* out, uint64_t capacity) {
  try {
    const std::vector<um::driver::Calls> made = um::driver::libcuda_calls();
    for (size_t index = 0; out != nullptr && index < std::min<uint64_t>(made.size(), capacity); ++index) {
      out[index] = {um::intern(made[index].symbol), 0, static_cast<int64_t>(made[index].calls), made[index].ns, 0, 0};
    }
    return made.size();
  } catch (const std::bad_alloc&) {
    return 0;
  }
}
