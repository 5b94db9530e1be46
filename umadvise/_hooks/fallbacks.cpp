#include "fallbacks.h"

#include <mutex>
#include <utility>

#include "hooks.h"

namespace um::hooks {
namespace {

struct Fallbacks {
  std::mutex lock;
  uint64_t count = 0, most_bytes = 0;
  uint32_t most_name = 0;
};

// It is never destroyed, because ops may end after static objects have.
Fallbacks& fallbacks() {
  static auto* const all = new Fallbacks;
  return *all;
}

}  // namespace

void count_fallback(uint32_t name) noexcept {
  Fallbacks& all = fallbacks();
  const std::lock_guard<std::mutex> guard(all.lock);
  ++all.count;
  if (refused_bytes > all.most_bytes) {
    all.most_bytes = refused_bytes;
    all.most_name = name;
  }
  refused_bytes = 0;
}

}  // namespace um::hooks

uint64_t um_hooks_fallbacks(uint32_t* name, uint64_t* most_bytes) {
  um::hooks::Fallbacks& all = um::hooks::fallbacks();
  const std::lock_guard<std::mutex> guard(all.lock);
  *name = all.most_name;
  *most_bytes = std::exchange(all.most_bytes, 0);
  return std::exchange(all.count, 0);
}
