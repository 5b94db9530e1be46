#include "devices/emulated/streaming_copy.h"

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

namespace um::emulated {

// Whoever accesses these bytes meanwhile is held back by the protection of their pages, which ThreadSanitizer does not
// know: it takes the access for done before the fault.
__attribute__((no_sanitize("thread"))) void streaming_copy(char* to, const char* from, size_t bytes) {
  constexpr size_t kLine = 64, kVector = sizeof(__m128i);
  constexpr size_t kLeast = size_t{64} << 10;  // less is as quick through the caches
  if (bytes < kLeast || reinterpret_cast<uintptr_t>(to) % kVector != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t lines = bytes / kLine;
  for (size_t line = 0; line < lines; ++line) {
    const auto* source = reinterpret_cast<const __m128i*>(from + line * kLine);
    auto* target = reinterpret_cast<__m128i*>(to + line * kLine);
    const __m128i first = _mm_loadu_si128(source), second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2), fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
  }
  _mm_sfence();
  std::memcpy(to + lines * kLine, from + lines * kLine, bytes - lines * kLine);
}

}  // namespace um::emulated
