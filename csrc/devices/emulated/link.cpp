#include "devices/emulated/link.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cmath>

#include "devices/emulated/virtual_time.h"

namespace um::emulated {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// The kernel may let a sleeper oversleep by its timer slack, 50 us, a third of a block's copy: the rest is waited out
// awake.
constexpr int64_t kAwake = 80'000;

}  // namespace

int64_t Link::now_ns() const { return time_ != nullptr ? time_->now_ns() : um::now_ns(); }

void Link::wait_until(int64_t moment_ns) const {
  if (moment_ns == 0) return;
  if (time_ != nullptr) return time_->wait_until(moment_ns);
  for (int64_t left = moment_ns - now_ns(); left > 0; left = moment_ns - now_ns()) {
    if (left > kAwake) {
      const int64_t until = moment_ns - kAwake;
      const timespec moment{until / kSecond, static_cast<long>(until % kSecond)};
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, nullptr);
    } else {
      sched_yield();
    }
  }
}

void Link::begin_fault(int64_t start_ns) {
  begin(std::max(start_ns, fault_free_ns_));
  spend(costs_.fault_ns);
}

void Link::spend(int64_t duration_ns) {
  if (!on_) return;
  at_ns_ += duration_ns;
  charged_.driver_ns += duration_ns;
}

void Link::charge(const Action& action, bool first) {
  if (!on_) return;
  switch (action.what) {
    case Do::zero_device:
      spend(costs_.zero_ns + (first ? costs_.first_map_ns : 0));
      break;
    case Do::copy_h2d: {
      const bool prefetch = action.cause == Cause::user;
      spend((prefetch ? 0 : costs_.migrate_ns) + (first ? costs_.first_map_ns : 0));
      copy(h2d, kBlockBytes,
           prefetch && costs_.prefetch_bytes_per_s > 0 ? costs_.prefetch_bytes_per_s : link_.bytes_per_s[h2d]);
      break;
    }
    case Do::evict_copy:
    case Do::evict_drop:
      spend(costs_.evict_ns);
      break;
    case Do::copy_d2h:
    case Do::zero_host:
    case Do::drop_host:
    case Do::drop_device:
      break;
  }
  if (action.what == Do::evict_copy || action.what == Do::copy_d2h) copy(d2h, kBlockBytes);
}

void Link::take_place(uint64_t unused) {
  if (time_ == nullptr) return;
  const auto first = [this] { return left_ns_[first_leaving_ % kMostLeaving]; };
  for (; leaving_ > 0 && (first() <= at_ns_ || leaving_ == kMostLeaving); --leaving_) ++first_leaving_;
  if (unused > leaving_ || leaving_ == 0) return;
  at_ns_ = first();
  ++first_leaving_;
  --leaving_;
}

void Link::leave_place() {
  if (time_ != nullptr && leaving_ < kMostLeaving) left_ns_[(first_leaving_ + leaving_++) % kMostLeaving] = at_ns_;
}

// While the other direction is busy too, both are slower; a copy that is on its way already is not made to end later.
void Link::copy(Direction direction, uint64_t bytes, double bytes_per_s) {
  if (!on_ || bytes == 0) return;
  const int64_t begin_ns = std::max(at_ns_, free_ns_[direction]) + link_.fixed_ns[direction];
  const double both = std::min(bytes_per_s, link_.both_bytes_per_s[direction]);
  const double overlap_s = static_cast<double>(std::max<int64_t>(0, free_ns_[1 - direction] - begin_ns)) * 1e-9;
  const auto size = static_cast<double>(bytes);
  const double seconds = size <= overlap_s * both ? size / both : overlap_s + (size - overlap_s * both) / bytes_per_s;
  at_ns_ = begin_ns + std::llround(seconds * 1e9);
  charged_.copy_ns[direction] += at_ns_ - begin_ns + link_.fixed_ns[direction];
  free_ns_[direction] = at_ns_;
}

}  // namespace um::emulated
