#include "memory/features.h"

#include <initializer_list>
#include <iterator>

namespace um {
namespace {

using driver::Function;

// Returns the reason why the first of these functions is missing; empty if the driver has all.
std::string missing(const Backend& backend, std::initializer_list<Function> functions) {
  for (const Function function : functions) {
    const char* reason = backend.driver->reason[static_cast<size_t>(function)];
    if (reason != nullptr) return reason;
  }
  return {};
}

std::string lacks(const Backend& backend, int32_t value, driver::CUdevice_attribute attribute, const char* what) {
  if (value == 1) return {};
  const std::string number = " (attribute " + std::to_string(attribute) + ")";
  return value == UM_UNKNOWN ? "the driver does not tell whether " + backend.name + " has " + what + number
                             : backend.name + " has no " + what + number;
}

std::string why_no_managed_memory(const Backend& backend) {
  std::string reason = missing(backend, {Function::mem_alloc_managed});
  if (!reason.empty()) return reason;
  return lacks(backend, backend.managed_memory, driver::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, "managed memory");
}

std::string why_no_migration(const Backend& backend) {
  std::string reason = why_no_managed_memory(backend);
  if (reason.empty()) reason = missing(backend, {Function::mem_advise, Function::mem_prefetch_async});
  if (!reason.empty()) return reason;
  const char* attribute = backend.why_no_migration();
  return attribute != nullptr ? attribute : "";
}

std::string why_no_discard(const Backend& backend) {
  std::string reason = why_no_migration(backend);
  if (reason.empty()) reason = missing(backend, {Function::mem_discard_batch_async});
  if (reason.empty() && !backend.discards)
    return "discards are not used before tools/gpu_check has tried this driver's";
  return reason;
}

std::string why_no_chunks(const Backend& backend) {
  std::string reason =
      missing(backend, {Function::mem_address_reserve, Function::mem_address_free, Function::mem_create,
                        Function::mem_release, Function::mem_map, Function::mem_unmap, Function::mem_set_access,
                        Function::mem_get_allocation_granularity});
  if (!reason.empty()) return reason;
  if (backend.integrated == 1) {
    return backend.name + " is integrated (attribute " + std::to_string(driver::CU_DEVICE_ATTRIBUTE_INTEGRATED) +
           "): its memory is the host's, so nothing is gained by moving anything there";
  }
  return lacks(backend, backend.virtual_memory, driver::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
               "management of virtual memory");
}

}  // namespace

std::string why_not(const Backend& backend, Feature feature) {
  constexpr std::string (*kReasons[])(const Backend&) = {why_no_managed_memory, why_no_migration, why_no_discard,
                                                         why_no_chunks};
  static_assert(std::size(kReasons) == kFeatureCount);
  return kReasons[static_cast<uint32_t>(feature)](backend);
}

}  // namespace um
