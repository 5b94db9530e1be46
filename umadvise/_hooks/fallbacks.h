// Counts ops that could not allocate memory and fell back to another algorithm, as cuDNN's ops do.
#pragma once

#include <cstdint>

namespace um::hooks {

// The largest request of this thread's op that was refused; 0: none.
inline thread_local uint64_t refused_bytes = 0;

inline void note_refusal(uint64_t bytes) noexcept {
  if (bytes > refused_bytes) refused_bytes = bytes;
}
inline void begin_without_refusals() noexcept { refused_bytes = 0; }
// Counts an op that has ended without an error; `name` is interned.
void count_fallback(uint32_t name) noexcept;
inline void end_despite_refusals(uint32_t name) noexcept {
  if (refused_bytes != 0) count_fallback(name);
}

}  // namespace um::hooks
