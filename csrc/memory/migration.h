// Advice and prefetch through whichever form of the call the driver has: by location (CUDA 12.2) or by device.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/backend.h"

namespace um {

// All need the device's context current, and throw um::Error. A device without concurrent managed access must not be
// asked (Backend::why_no_migration).
void advise(const Backend& backend, uint64_t address, uint64_t bytes, driver::CUmem_advise advice);
void prefetch(const Backend& backend, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream);

struct Prefetch {
  uint64_t address, bytes;
  bool to_host;
};
// All at once where the driver can (not in the legacy stream), one after the other elsewhere.
void prefetch(const Backend& backend, const std::vector<Prefetch>& all, driver::CUstream stream);

// The contents of whole pages are not needed any more. Not in the legacy stream.
void discard(const Backend& backend, uint64_t address, uint64_t bytes, driver::CUstream stream);
// What the advice sets; none and prefetch take back whatever there may be.
void set_advice(const Backend& backend, uint64_t address, uint64_t bytes, um_advice advice);

// What a placement's advice sets on its arenas; false for none and prefetch, which set nothing.
bool driver_advice(um_advice advice, driver::CUmem_advise* out);

}  // namespace um
