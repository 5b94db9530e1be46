// Interns the names of ops, modules and allocations, which are passed as numbers.
#pragma once

#include <cstdint>

namespace um {

uint32_t intern(const char* text);          // 0 for the empty name. Throws std::bad_alloc
const char* name_of(uint32_t id) noexcept;  // "" for 0 and unknown ids; lives as long as the process

}  // namespace um
