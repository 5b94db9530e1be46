// Filling the table from a driver library; what driver.h's libcuda() does once with "libcuda.so.1". For that and for
// tests.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "driver/driver.h"

namespace um::driver {

// The one symbol taken from the library by name. It exists since CUDA 12.0 and, being suffixed, can mean nothing else.
inline constexpr char kGetProcAddressSymbol[] = "cuGetProcAddress_v2";
enum CUdriverProcAddressQueryResult : unsigned;
using GetProcAddress = CUresult (*)(const char* symbol, void** function, int version, uint64_t flags,
                                    CUdriverProcAddressQueryResult* status);
// CU_GET_PROC_ADDRESS_LEGACY_STREAM: nullptr is the legacy stream, which is also torch's default stream, and not the
// calling thread's own.
inline constexpr uint64_t kLegacyStream = 1;

// The first driver whose cuMemAdvise and cuMemPrefetchAsync take a CUmemLocation, which is how the CPU is named since.
inline constexpr int kOldestVersion = 12020;

struct Libcuda {
  Driver driver;
  std::array<std::string, kFunctionCount> reasons;  // what Driver::reason points to
};

// An initialised driver with at least one device, or nullptr with the reason in words. The library stays loaded either
// way.
std::unique_ptr<const Libcuda> load_libcuda(const char* library, std::string* reason);

}  // namespace um::driver
