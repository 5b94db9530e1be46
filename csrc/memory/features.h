// What a device can do, told by its attributes and by what its driver has. Everything that is missing has a reason in
// words: whoever needs it is refused with that, or does without.
#pragma once

#include <string>

#include "memory/backend.h"

namespace um {

// X(enumerator, name)
#define UM_FEATURES(X)                            \
  X(managed_memory, "managed memory")             \
  X(migration, "advice, prefetches and a budget") \
  X(discard, "discard of dead ranges")            \
  X(chunks, "explicit swapping")                  \
  X(host_mapping, "swapped-out memory that stays accessible")

enum class Feature : uint32_t {
#define UM_FEATURE_ENUMERATOR(enumerator, name) enumerator,
  UM_FEATURES(UM_FEATURE_ENUMERATOR)
#undef UM_FEATURE_ENUMERATOR
};

inline constexpr const char* kFeatureNames[] = {
#define UM_FEATURE_NAME(enumerator, name) name,
    UM_FEATURES(UM_FEATURE_NAME)
#undef UM_FEATURE_NAME
};
inline constexpr uint32_t kFeatureCount = sizeof(kFeatureNames) / sizeof(kFeatureNames[0]);

// Empty where the device has it.
std::string why_not(const Backend& backend, Feature feature);

}  // namespace um
