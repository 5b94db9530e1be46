#include "engine/times.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace um {

void Times::set(bool on) noexcept {
  turn(outside_);
  on_ = on && backend_.hooks->in_host;
  since_ns_ = backend_.now_ns();
  stood_ns_ = on_ ? stood_ns() : 0;
}

driver::StallTimes Times::faults() const noexcept {
  driver::StallTimes faults{};
  backend_.hooks->stood(backend_.ordinal, &faults);
  return faults;
}

// Sums all stalls that are measured where they happen. This must be fast: each op calls it several times.
int64_t Times::stood_ns() const noexcept {
  const driver::StallTimes stood = faults();
  return stood.fault_ns() + stood.prefetch_ns + swaps_.counted.wait_copy_ns + swaps_.counted.wait_room_ns;
}

// The stalls of several threads may add up to more than the time that passes.
int64_t Times::turn(um_time kind) noexcept {
  if (logs_ && kind != log_.back().kind) note(backend_.now_ns(), kind);
  if (!on_) return 0;
  const int64_t now_ns = backend_.now_ns(), stood_ns = this->stood_ns();
  const int64_t passed_ns = std::max<int64_t>(0, now_ns - since_ns_ - (stood_ns - stood_ns_));
  ns_[kind_] += passed_ns;
  since_ns_ = now_ns;
  stood_ns_ = stood_ns;
  kind_ = kind;
  return passed_ns;
}

um_time Times::set_outside(um_time kind, bool ops_run) noexcept {
  const um_time before = outside_;
  outside_ = kind;
  if (!ops_run) turn(kind);
  return before;
}

void Times::log(int64_t since_ns) noexcept {
  log_.clear();
  logs_ = true;
  note(since_ns, outside_);
}

void Times::note(int64_t at_ns, um_time kind) noexcept {
  try {
    log_.push_back({at_ns, kind});
  } catch (const std::bad_alloc&) {
    logs_ = false;
  }
}

int64_t Times::read(um_spent_time* out) noexcept {
  turn(kind_);
  read_ns_ = on_ ? since_ns_ : backend_.now_ns();
  const driver::StallTimes stood = faults();
  int64_t all[UM_TIME_COUNT];
  std::copy(std::begin(ns_), std::end(ns_), all);
  all[UM_TIME_FIRST_TOUCH] += stood.first_touch_ns;
  all[UM_TIME_MIGRATION] += stood.migration_ns;
  all[UM_TIME_FAULT_ROOM] += stood.room_ns;
  all[UM_TIME_PREFETCH] += stood.prefetch_ns;
  all[UM_TIME_ON_DEMAND] += swaps_.on_demand_ns;
  all[UM_TIME_SWAP_IN] += swaps_.counted.wait_copy_ns - swaps_.on_demand_ns;
  all[UM_TIME_ROOM] += swaps_.counted.wait_room_ns;
  if (!on_) std::fill(std::begin(all), std::end(all), UM_UNKNOWN);
  static_assert(sizeof(all) == sizeof(*out));
  std::memcpy(out, all, sizeof(all));
  return read_ns_;
}

}  // namespace um
