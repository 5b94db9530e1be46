#include "memory/migration.h"

namespace um {

namespace {

driver::CUmemLocation location(const Backend& backend, bool to_host) {
  return {to_host ? driver::CU_MEM_LOCATION_TYPE_HOST : driver::CU_MEM_LOCATION_TYPE_DEVICE,
          to_host ? 0 : backend.device};
}

// Returns false if the driver has no batched prefetch.
bool prefetch_batch(const Backend& backend, const std::vector<Prefetch>& all, driver::CUstream stream) {
  std::vector<driver::CUdeviceptr> addresses;
  std::vector<size_t> sizes, starts;  // the index of the first range of each location
  std::vector<driver::CUmemLocation> locations;
  for (const Prefetch& each : all) {
    if (addresses.empty() || each.to_host != all[addresses.size() - 1].to_host) {
      starts.push_back(addresses.size());
      locations.push_back(location(backend, each.to_host));
    }
    addresses.push_back(each.address);
    sizes.push_back(each.bytes);
  }
  const driver::CUresult result = backend.call().mem_prefetch_batch_async(
      addresses.data(), sizes.data(), addresses.size(), locations.data(), starts.data(), starts.size(), 0, stream);
  if (result == driver::CUDA_ERROR_NOT_SUPPORTED) return false;
  backend.check(result, "prefetching " + std::to_string(all.size()) + " ranges of managed memory");
  return true;
}

}  // namespace

void advise(const Backend& backend, uint64_t address, uint64_t bytes, driver::CUmem_advise advice) {
  const driver::CUmemLocation here{driver::CU_MEM_LOCATION_TYPE_DEVICE, backend.device};
  backend.check(backend.call().mem_advise(address, bytes, advice, here),
                "advising " + std::to_string(bytes) + " bytes of managed memory");
}

void prefetch(const Backend& backend, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream) {
  backend.check(backend.call().mem_prefetch_async(address, bytes, location(backend, to_host), 0, stream),
                "prefetching " + std::to_string(bytes) + " bytes to the " + (to_host ? "host" : "device"));
}

void prefetch(const Backend& backend, const std::vector<Prefetch>& all, driver::CUstream stream) {
  if (all.size() > 1 && prefetch_batch(backend, all, stream)) return;
  for (const Prefetch& each : all) prefetch(backend, each.address, each.bytes, each.to_host, stream);
}

void discard(const Backend& backend, uint64_t address, uint64_t bytes, driver::CUstream stream) {
  driver::CUdeviceptr range = address;
  size_t size = bytes;
  backend.check(backend.call().mem_discard_batch_async(&range, &size, 1, 0, stream),
                "discarding " + std::to_string(bytes) + " bytes of managed memory");
}

void set_advice(const Backend& backend, uint64_t address, uint64_t bytes, um_advice wanted) {
  driver::CUmem_advise advice{};
  if (driver_advice(wanted, &advice)) return advise(backend, address, bytes, advice);
  for (const driver::CUmem_advise each :
       {driver::CU_MEM_ADVISE_UNSET_READ_MOSTLY, driver::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
        driver::CU_MEM_ADVISE_UNSET_ACCESSED_BY}) {
    um::advise(backend, address, bytes, each);
  }
}

bool driver_advice(um_advice advice, driver::CUmem_advise* out) {
  switch (advice) {
    case UM_ADVICE_PREFERRED_LOCATION:
      *out = driver::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
      return true;
    case UM_ADVICE_ACCESSED_BY:
      *out = driver::CU_MEM_ADVISE_SET_ACCESSED_BY;
      return true;
    case UM_ADVICE_READ_MOSTLY:
      *out = driver::CU_MEM_ADVISE_SET_READ_MOSTLY;
      return true;
    case UM_ADVICE_NONE:
    case UM_ADVICE_PREFETCH:
    case UM_ADVICE_COUNT:
      break;
  }
  return false;
}

}  // namespace um
