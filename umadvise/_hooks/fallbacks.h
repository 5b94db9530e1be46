// Ops that asked for memory, found no room, and went on without it: cuDNN's do, which then compute in another way.
#pragma once

#include <cstdint>

namespace um::hooks {

// The most that the op of this thread was refused; 0: nothing.
inline thread_local uint64_t refused_bytes = 0;

inline void note_refusal(uint64_t bytes) noexcept {
  if (bytes > refused_bytes) refused_bytes = bytes;
}
inline void begin_without_refusals() noexcept { refused_bytes = 0; }
// The op has ended as if nothing had happened; `name` is interned.
void count_fallback(uint32_t name) noexcept;
inline void end_despite_refusals(uint32_t name) noexcept {
  if (refused_bytes != 0) count_fallback(name);
}

}  // namespace um::hooks
