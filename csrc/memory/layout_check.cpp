// The invariants of Layout (base/assert.h).
#include <algorithm>

#include "base/assert.h"
#include "memory/layout.h"

namespace um {

// A stay and its range refer to each other until the range is given back. An open stay has a range.
void Layout::check(const Step& step) const {
  UM_ASSERT(step.length.tick >= static_cast<int64_t>(step.stays.size()));
  const size_t count = step.stays.size();
  for (size_t i = count > kMostChecked ? count - kMostChecked : 0; i < count; ++i) {
    const Seen& seen = step.stays[i];
    UM_ASSERT(seen.range != nullptr || !seen.open);
    UM_ASSERT(seen.stay.count > 0);
    if (seen.range == nullptr) continue;
    UM_ASSERT(seen.range->held && seen.range->stay == step.first + i);
    UM_ASSERT(seen.range->chunks.size() == seen.stay.count);
  }
}

// Stays have consecutive numbers. All ranges of a layout are mapped, and each chunk's stays are in order.
bool Layout::check() const {
  check(step_);
  check(before_);
  UM_ASSERT(before_.stays.empty() || before_.first + before_.stays.size() == step_.first);
  UM_ASSERT(1 <= steps_of_circle_ && steps_of_circle_ <= kMostSteps && 0 <= place_ && place_ < kMostSteps);
  UM_ASSERT(laid_out_ == 0 || follows_);
  if (ranges_.released() != released_ || before_.stays.size() > kMostChecked) return true;  // forgotten at the next use
  uint64_t laid_out = 0;
  for (const auto& turns_of_step : turns_) {
    for (const auto& [key, turns] : turns_of_step) {
      for (const Own& own : turns.stays) {
        laid_out += own.chunks.size();
        UM_ASSERT(own.range == nullptr || (own.range->kept && own.range->chunks == own.chunks));
      }
    }
  }
  UM_ASSERT(laid_out == laid_out_);
  for (const auto& begins : begins_) UM_ASSERT(std::is_sorted(begins.begin(), begins.end()));
  return true;
}

}  // namespace um
