// What is told of a CUDA device that nobody opened. The driver is the stand-in behind which the emulated device works:
// 128 MiB, and of the attributes those of managed memory, concurrent access and virtual memory.
#include <algorithm>
#include <cstring>
#include <vector>

#include "driver/device_hooks.h"
#include "engine_fixture.h"

extern "C" const um::driver::DeviceHooks* emulated_libcuda_hooks(void);

namespace {

int32_t attribute(uint32_t number) {
  int32_t value = -99;
  CHECK_OK(um_cuda_attribute(0, number, &value));
  return value;
}

}  // namespace

TEST(a_device_is_described_without_a_context) {
  um_cuda_device device{};
  CHECK_OK(um_cuda_describe(0, &device));
  CHECK(std::strstr(device.name, "emulated") != nullptr);
  CHECK_EQ(device.device_count, 1u);
  CHECK_EQ(device.total_bytes, 128 * test::kMiB);
  CHECK(device.driver_version >= 12020);
  CHECK_EQ(emulated_libcuda_hooks()->calls(0, "cuDevicePrimaryCtxRetain"), uint64_t{0});
}

TEST(attributes_are_asked_for_by_number) {
  CHECK_EQ(attribute(83), 1);
  CHECK_EQ(attribute(89), 1);
  CHECK_EQ(attribute(102), 1);
  CHECK_EQ(attribute(18), 0);
}

TEST(what_is_not_there_has_a_reason) {
  um_cuda_device device{};
  int32_t value = 0;
  for (const int32_t ordinal : {-1, 1}) {
    CHECK_FAILS(UM_UNSUPPORTED, um_cuda_describe(ordinal, &device));
    CHECK(std::strstr(um_last_error(), "the driver sees 1, numbered from 0") != nullptr);
    CHECK_FAILS(UM_UNSUPPORTED, um_cuda_attribute(ordinal, 83, &value));
  }
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_cuda_describe(0, nullptr));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_cuda_attribute(0, 83, nullptr));
}

TEST(calls_of_the_driver_are_told_by_name) {
  const auto counted = [] {
    std::vector<um_call_count> made(um_cuda_calls(nullptr, 0));
    CHECK_EQ(um_cuda_calls(made.data(), made.size()), made.size());
    const auto asked = um_intern("cuDeviceGetAttribute");
    const auto found = std::find_if(made.begin(), made.end(), [&](const auto& row) { return row.function == asked; });
    return found == made.end() ? um_call_count{} : *found;
  };
  const um_call_count before = counted();
  attribute(83);
  attribute(89);
  const um_call_count after = counted();
  CHECK_EQ(after.calls - before.calls, int64_t{2});
  CHECK(after.ns > before.ns);
}

TEST(a_failing_call_is_named) {
  um_cuda_device device{};
  int32_t value = 0;
  CHECK(emulated_libcuda_hooks()->fail(0, "cuDeviceGetAttribute", 1));
  CHECK_FAILS(UM_DRIVER_ERROR, um_cuda_attribute(0, 83, &value));
  CHECK(std::strstr(um_last_error(), "asking for a device attribute failed") != nullptr);
  CHECK_EQ(value, UM_UNKNOWN);
  CHECK(emulated_libcuda_hooks()->fail(0, "cuDeviceGetName", 1));
  CHECK_FAILS(UM_DRIVER_ERROR, um_cuda_describe(0, &device));
  CHECK(std::strstr(um_last_error(), "name") != nullptr);
}
