// CUresult in words.
#pragma once

#include <string>

#include "driver/table.h"

namespace um::driver {

// "CUDA_ERROR_OUT_OF_MEMORY" and "out of memory"; nullptr for a code that types.h does not list.
const char* error_name(CUresult result) noexcept;
const char* error_message(CUresult result) noexcept;

// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", in the words of the driver that returned it, which may know more
// codes.
std::string describe(const Table& call, CUresult result);

}  // namespace um::driver
