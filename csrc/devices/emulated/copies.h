// What copies and fills do to bytes, between any two of host, managed, plain and reserved memory.
#pragma once

#include <cstddef>

#include "driver/types.h"

namespace um::emulated {

// What lies on one device on one side alone crosses its link, as one copy.
void copy(driver::CUdeviceptr to, driver::CUdeviceptr from, size_t bytes);
void fill(driver::CUdeviceptr address, unsigned char value, size_t bytes);
// False: it is a device's, and something of it is not there.
bool may_copy(driver::CUdeviceptr address, size_t bytes);

}  // namespace um::emulated
