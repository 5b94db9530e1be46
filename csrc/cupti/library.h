// The libcupti of this process: the one that torch loaded, else one of CUDA's toolkit. Nothing links it.
#pragma once

#include <memory>
#include <string>

#include "cupti/abi.h"

namespace um::cupti {

struct Library {
#define UM_CUPTI_SLOT(name, symbol, ...) CUptiResult (*name)(__VA_ARGS__);
  UM_CUPTI_FUNCTIONS(UM_CUPTI_SLOT)
#undef UM_CUPTI_SLOT
  std::string path;
  uint32_t version;
};

// The file name of a libcupti that this process has loaded already; empty when there is none. A second copy must never
// be loaded beside it: each takes the driver's hooks for its own.
std::string loaded_library();

// The library with this name or path, whole, or nullptr with the reason in words. It stays loaded.
std::unique_ptr<const Library> open_library(const std::string& name, std::string* reason);

// The first of two that there is; nullptr with the reason, which says how to get one.
std::unique_ptr<const Library> open_one_of(const std::string& name, const std::string& other, std::string* reason);

// The one that is loaded, else the one of `driver_version`'s major version, else that of the other one; nullptr with
// the reason in words. Found once, it is kept; what was not there is looked for again.
const Library* library(int driver_version, std::string* reason);

// In words: what the code means, and what to do where something can be done.
std::string describe(const Library& library, CUptiResult result);

}  // namespace um::cupti
