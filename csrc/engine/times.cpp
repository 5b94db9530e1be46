#include "engine/times.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace um {

void Times::set(bool on) noexcept {
  turn(outside_);
  on_ = on && backend_.hooks->in_host;
  since_ns_ = backend_.now_ns();
  stood_ns_ = on_ ? stood().sum_ns : 0;
}

Times::Stood Times::stood() const noexcept {
  emulated::Stood faults{};
  backend_.hooks->stood(backend_.ordinal, &faults);
  Stood all{};
  all.ns[UM_TIME_FIRST_TOUCH] = faults.first_touch_ns;
  all.ns[UM_TIME_MIGRATION] = faults.migration_ns;
  all.ns[UM_TIME_FAULT_ROOM] = faults.room_ns;
  all.ns[UM_TIME_PREFETCH] = faults.prefetch_ns;
  all.ns[UM_TIME_ON_DEMAND] = swaps_.on_demand_ns;
  all.ns[UM_TIME_SWAP_IN] = swaps_.counted.wait_copy_ns - swaps_.on_demand_ns;
  all.ns[UM_TIME_ROOM] = swaps_.counted.wait_room_ns;
  for (const int64_t each : all.ns) all.sum_ns += each;
  return all;
}

// Several threads may stand still at once, for longer than time passes.
int64_t Times::turn(um_time kind) noexcept {
  if (logs_ && kind != log_.back().kind) note(backend_.now_ns(), kind);
  if (!on_) return 0;
  const int64_t now_ns = backend_.now_ns(), stood_ns = stood().sum_ns;
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
  const Stood stood_still = stood();
  int64_t all[UM_TIME_COUNT];
  for (int kind = 0; kind < UM_TIME_COUNT; ++kind) all[kind] = on_ ? ns_[kind] + stood_still.ns[kind] : UM_UNKNOWN;
  static_assert(sizeof(all) == sizeof(*out));
  std::memcpy(out, all, sizeof(all));
  return read_ns_;
}

}  // namespace um
