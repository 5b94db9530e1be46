#include "memory/migration.h"

namespace um {

void advise(const Backend& backend, uint64_t address, uint64_t bytes, driver::CUmem_advise advice) {
  const driver::CUmemLocation here{driver::CU_MEM_LOCATION_TYPE_DEVICE, backend.device};
  backend.check(backend.call().mem_advise(address, bytes, advice, here),
                "advising " + std::to_string(bytes) + " bytes of managed memory");
}

void prefetch(const Backend& backend, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream) {
  const driver::CUmemLocation there{to_host ? driver::CU_MEM_LOCATION_TYPE_HOST : driver::CU_MEM_LOCATION_TYPE_DEVICE,
                                    to_host ? 0 : backend.device};
  backend.check(backend.call().mem_prefetch_async(address, bytes, there, 0, stream),
                "prefetching " + std::to_string(bytes) + " bytes to the " + (to_host ? "host" : "device"));
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
