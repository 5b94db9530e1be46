// Advice and prefetches, through the form of the call that the driver has: by location (CUDA 12.2) or by device.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/backend.h"

namespace um {

// All functions need the device's context to be current, and throw um::Error. They must not be called for a device
// without concurrent managed access (Backend::why_no_migration).
void advise(const Backend& backend, uint64_t address, uint64_t bytes, driver::CUmem_advise advice);
void prefetch(const Backend& backend, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream);

struct Prefetch {
  uint64_t address, bytes;
  bool to_host;
};
// Prefetches all ranges in one call if the driver has that (not in the legacy stream), or else one after the other.
void prefetch(const Backend& backend, const std::vector<Prefetch>& all, driver::CUstream stream);

// Tells the driver that the contents of whole pages are dead. Not allowed in the legacy stream.
void discard(const Backend& backend, uint64_t address, uint64_t bytes, driver::CUstream stream);
// Sets what the advice stands for. UM_ADVICE_NONE and UM_ADVICE_PREFETCH unset all advice.
void set_advice(const Backend& backend, uint64_t address, uint64_t bytes, um_advice advice);

// Stores the driver's advice for a placement. Returns false for none and prefetch, which set nothing.
bool driver_advice(um_advice advice, driver::CUmem_advise* out);

}  // namespace um
