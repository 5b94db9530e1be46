// The features of a device, derived from its attributes and its driver. If a feature is missing, why_not() says why in
// words, for the message of the refusal.
#pragma once

#include <string>

#include "memory/backend.h"

namespace um {

enum class Feature : uint32_t { managed_memory, migration, discard, chunks };
inline constexpr const char* kFeatureNames[] = {"managed memory", "advice, prefetches and a budget",
                                                "discard of dead ranges", "explicit swapping"};
inline constexpr uint32_t kFeatureCount = sizeof(kFeatureNames) / sizeof(kFeatureNames[0]);

// Returns an empty string if the device has the feature.
std::string why_not(const Backend& backend, Feature feature);

}  // namespace um
