// An open emulated device and its virtual memory management, for tests: calls that must succeed, and patterns of bytes.
#pragma once

#include <algorithm>

#include "emulated_device.h"

namespace test {

using um::driver::CUdeviceptr;

struct VirtualMemory : EmulatedDevice {
  using EmulatedDevice::EmulatedDevice;
  using Handle = um::driver::CUmemGenericAllocationHandle;

  um::driver::CUmemAllocationProp properties(bool on_device) const {
    um::driver::CUmemAllocationProp made{};
    made.type = um::driver::CU_MEM_ALLOCATION_TYPE_PINNED;
    made.location = on_device ? um::driver::CUmemLocation{um::driver::CU_MEM_LOCATION_TYPE_DEVICE, ordinal}
                              : um::driver::CUmemLocation{um::driver::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    return made;
  }
  um::driver::CUmemAccessDesc access(um::driver::CUmemAccess_flags flags) const {
    return {{um::driver::CU_MEM_LOCATION_TYPE_DEVICE, ordinal}, flags};
  }

  CUdeviceptr reserve(uint64_t bytes) const {
    CUdeviceptr address = 0;
    succeeds(driver.call.mem_address_reserve(&address, bytes, 0, 0, 0));
    return address;
  }
  void free_reserved(CUdeviceptr address, uint64_t bytes) const {
    succeeds(driver.call.mem_address_free(address, bytes));
  }
  Handle create(uint64_t bytes, bool on_device = true) const {
    Handle handle = 0;
    const auto wanted = properties(on_device);
    succeeds(driver.call.mem_create(&handle, bytes, &wanted, 0));
    return handle;
  }
  void release(Handle handle) const { succeeds(driver.call.mem_release(handle)); }
  void map(CUdeviceptr address, uint64_t bytes, Handle handle) const {
    succeeds(driver.call.mem_map(address, bytes, 0, handle, 0));
  }
  void unmap(CUdeviceptr address, uint64_t bytes) const { succeeds(driver.call.mem_unmap(address, bytes)); }
  void allow(CUdeviceptr address, uint64_t bytes, um::driver::CUmemAccess_flags flags) const {
    const auto wanted = access(flags);
    succeeds(driver.call.mem_set_access(address, bytes, &wanted, 1));
  }
  uint64_t free_bytes() const {
    size_t free_now = 0, total = 0;
    succeeds(driver.call.mem_get_info(&free_now, &total));
    return free_now;
  }
  // Whether the driver would copy from there.
  bool copies(CUdeviceptr address, uint64_t bytes) const {
    std::vector<unsigned char> target(bytes);
    return driver.call.memcpy_dtoh_async(target.data(), address, bytes, nullptr) == um::driver::CUDA_SUCCESS;
  }
  static void succeeds(um::driver::CUresult result) { CHECK_EQ(result, um::driver::CUDA_SUCCESS); }
};

// A pattern that tells its seed and its place.
inline unsigned char pattern(uint64_t offset, unsigned seed) {
  return static_cast<unsigned char>(offset / 251 + offset + seed * 37 + 1);
}
inline unsigned char* bytes_at(CUdeviceptr address) { return reinterpret_cast<unsigned char*>(address); }
inline std::vector<unsigned char> pattern_of(uint64_t bytes, unsigned seed) {
  std::vector<unsigned char> made(bytes);
  for (uint64_t i = 0; i < bytes; ++i) made[i] = pattern(i, seed);
  return made;
}
inline void write(CUdeviceptr address, uint64_t bytes, unsigned seed) {
  const auto made = pattern_of(bytes, seed);
  std::copy(made.begin(), made.end(), bytes_at(address));
}
inline bool reads(CUdeviceptr address, uint64_t bytes, unsigned seed) {
  const auto made = pattern_of(bytes, seed);
  return std::equal(made.begin(), made.end(), bytes_at(address));
}

}  // namespace test
