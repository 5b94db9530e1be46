#include "engine/op_durations.h"

#include <new>

namespace um {

OpDurations::Number OpDurations::begin(uint64_t ticket, driver::CUstream stream) noexcept {
  const Number span = spans_.begin(stream);
  if (span == 0) return 0;
  try {
    ops_.push_back({ticket, span});
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return span;
}

OpDurations::Number OpDurations::pause(Number op, driver::CUstream stream) noexcept {
  const Number span = op != 0 ? spans_.begin(stream) : 0;
  if (span == 0) return 0;
  try {
    pauses_.push_back({op, span});
  } catch (const std::bad_alloc&) {
    return 0;
  }
  return span;
}

// What the op was given before has ended when a pause begins, so that this is the time in which nothing of it ran.
void OpDurations::subtract_pauses() noexcept {
  for (const Pause& pause : pauses_) {
    const auto op = std::lower_bound(ops_.begin(), ops_.end(), pause.op,
                                     [](const Op& each, Number number) { return each.span < number; });
    const int64_t stood_ns = spans_.length_ns(pause.span);
    if (op != ops_.end() && op->span == pause.op && stood_ns != UM_UNKNOWN) op->stood_ns += stood_ns;
  }
}

void OpDurations::clear() noexcept {
  spans_.clear();
  ops_.clear();
  pauses_.clear();
}

void OpDurations::destroy() noexcept {
  clear();
  spans_.destroy();
}

}  // namespace um
