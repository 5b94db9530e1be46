// Copies across the emulated link. Like a copy engine's, their bytes go past the processor's caches: what ops compute
// with stays in them, and a store costs memory one transfer where it would cost two.
#pragma once

#include <cstddef>

namespace um::emulated {

// The ranges do not overlap.
void streaming_copy(char* to, const char* from, size_t bytes);

}  // namespace um::emulated
