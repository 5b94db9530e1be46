#include "environment.h"

#include <cstdlib>

#include "driver/types.h"
#include "emulated_libcuda.h"

namespace {

uint64_t number(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before there are threads of ours
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

}  // namespace

void set_by_environment() {
  const uint64_t mib = number("STAND_IN_MIB", 0);
  if (mib == 0) return;
  emulated_libcuda_devices(static_cast<int>(number("STAND_IN_DEVICES", 1)), mib << 20,
                           static_cast<uint32_t>(number("STAND_IN_DELAY_US", 0)));
  emulated_libcuda_seed(number("STAND_IN_SEED", 0));
  emulated_libcuda_legacy_is_asynchronous(number("STAND_IN_ASYNC", 0) != 0 ? 1 : 0);
  emulated_libcuda_hollow(number("STAND_IN_HOLLOW_US", 0) != 0 ? 1 : 0);
  emulated_libcuda_attribute(um::driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8);
  emulated_libcuda_attribute(um::driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
  const char* lacked = std::getenv("STAND_IN_LACKS");  // NOLINT(concurrency-mt-unsafe): likewise
  while (lacked != nullptr && *lacked != '\0') {
    char* end = nullptr;
    emulated_libcuda_attribute(static_cast<int>(std::strtol(lacked, &end, 10)), 0);
    if (end == lacked) break;
    lacked = *end == ',' ? end + 1 : end;
  }
}
