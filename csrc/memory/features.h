// What a device can do, told by its attributes and by what its driver has. Everything that is missing has a reason in
// words: whoever needs it is refused with that, or does without.
#pragma once

#include <string>

#include "memory/backend.h"

namespace um {

enum class Feature : uint32_t { managed_memory, migration, discard, chunks };
inline constexpr const char* kFeatureNames[] = {"managed memory", "advice, prefetches and a budget",
                                                "discard of dead ranges", "explicit swapping"};
inline constexpr uint32_t kFeatureCount = sizeof(kFeatureNames) / sizeof(kFeatureNames[0]);

// Empty where the device has it.
std::string why_not(const Backend& backend, Feature feature);

}  // namespace um
