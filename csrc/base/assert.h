// Invariants that the program checks while it runs, in builds with UMADVISE_ASSERTIONS: every sanitized one. The
// library that is installed has none of this.
//
// A class with invariants has `bool check() const`, which asserts each of them and returns true, so that
// `UM_ASSERT(check())` after a change runs all of them, and none where assertions are off.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace um {

// A check that grows with what it looks at looks at no more than this, so that tests with large budgets stay fast.
inline constexpr std::size_t kMostChecked = 64;

[[noreturn]] inline void assertion_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: the invariant does not hold: %s\n", file, line, condition);
  std::abort();
}

}  // namespace um

#ifdef UMADVISE_ASSERTIONS
#define UM_ASSERT(condition) ((condition) ? static_cast<void>(0) : um::assertion_failed(#condition, __FILE__, __LINE__))
#else
#define UM_ASSERT(condition) static_cast<void>(sizeof((condition) ? 1 : 0))
#endif
