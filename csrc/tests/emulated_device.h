// An open emulated device with its context current, for tests of the driver seam.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "driver/device_hooks.h"
#include "driver/driver.h"

namespace test {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kBlock = 2 * kMiB;

struct EmulatedDevice {
  explicit EmulatedDevice(uint64_t capacity_bytes, uint32_t delay_max_us = 0,
                          um_counting counting = UM_COUNTING_ORDERED, uint64_t host_bytes = 256 * kMiB)
      : driver(*um::driver::emulated()), hooks(*driver.hooks) {
    const um_emulated_options options{capacity_bytes, host_bytes, counting, delay_max_us, check::seed(7)};
    char message[256] = "";
    if (hooks.open(&options, &ordinal, message, sizeof(message)) != UM_OK) throw std::runtime_error(message);
    um::driver::CUcontext context{};
    CHECK_EQ(driver.call.device_primary_ctx_retain(&context, ordinal), um::driver::CUDA_SUCCESS);
    CHECK_EQ(driver.call.ctx_set_current(context), um::driver::CUDA_SUCCESS);
    hooks.record(ordinal, true);
  }
  ~EmulatedDevice() {
    driver.call.ctx_set_current(nullptr);
    hooks.close(ordinal);
  }
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  unsigned char* managed(uint64_t bytes) {
    um::driver::CUdeviceptr address = 0;
    CHECK_EQ(driver.call.mem_alloc_managed(&address, bytes, um::driver::CU_MEM_ATTACH_GLOBAL),
             um::driver::CUDA_SUCCESS);
    return reinterpret_cast<unsigned char*>(address);
  }
  void free(void* address) { CHECK_EQ(driver.call.mem_free(as_pointer(address)), um::driver::CUDA_SUCCESS); }
  static um::driver::CUdeviceptr as_pointer(const void* address) {
    return reinterpret_cast<um::driver::CUdeviceptr>(address);
  }
  um::driver::DeviceTotals totals() const {
    um::driver::DeviceTotals out{};
    hooks.totals(ordinal, &out);
    return out;
  }
  std::vector<um::driver::DeviceEvent> events() const {
    std::vector<um::driver::DeviceEvent> out(1 << 16);
    out.resize(hooks.drain(ordinal, out.data(), out.size()));
    return out;
  }
  um::driver::CUresult advise(const void* address, uint64_t bytes, um::driver::CUmem_advise advice,
                              bool to_host = false) const {
    const um::driver::CUmemLocation where{
        to_host ? um::driver::CU_MEM_LOCATION_TYPE_HOST : um::driver::CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    return driver.call.mem_advise(as_pointer(address), bytes, advice, where);
  }
  um::driver::CUresult prefetch(const void* address, uint64_t bytes, bool to_host,
                                um::driver::CUstream stream = nullptr) const {
    const um::driver::CUmemLocation where{
        to_host ? um::driver::CU_MEM_LOCATION_TYPE_HOST : um::driver::CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    return driver.call.mem_prefetch_async(as_pointer(address), bytes, where, 0, stream);
  }

  const um::driver::Driver& driver;
  const um::driver::DeviceHooks& hooks;
  int32_t ordinal = -1;
};

}  // namespace test
