#include "replay/swap_link.h"

#include <algorithm>
#include <cmath>

namespace um::simulator {

namespace {

constexpr std::array<Direction, 2> kDirections{kToDevice, kToHost};
constexpr double kNothing = 1e-3;  // bytes: what rounding leaves of a copy that is through

Direction opposite(Direction direction) { return direction == kToDevice ? kToHost : kToDevice; }

}  // namespace

void SwapLink::submit(Direction direction, const Copy& copy, bool first) {
  if (first) {
    queued_[direction].push_front(copy);
  } else {
    queued_[direction].push_back(copy);
  }
  start(direction);
}

void SwapLink::start_waiting() {
  for (const Direction direction : kDirections) start(direction);
}

void SwapLink::start(Direction direction) {
  auto& queue = queued_[direction];
  while (!queue.empty() && running_[direction].size() < link_.engines[direction]) {
    const Begin begin = listener_.begins(direction, queue.front());
    if (begin == Begin::waits) return;
    const Copy copy = queue.front();
    queue.pop_front();
    if (begin == Begin::dropped) continue;
    uint8_t engine = 0;
    while ((engines_used_[direction] >> engine & 1u) != 0) ++engine;
    engines_used_[direction] |= 1u << engine;
    running_[direction].push_back({copy, now_ns_, link_.fixed_ns[direction], static_cast<double>(copy.bytes), engine});
  }
}

bool SwapLink::transfers(Direction direction) const {
  const auto& running = running_[direction];
  return std::any_of(running.begin(), running.end(), [](const Running& each) { return each.fixed_left_ns == 0; });
}

// Of one copy: those of one direction share its bandwidth.
double SwapLink::bytes_per_ns(Direction direction) const {
  const bool both = transfers(opposite(direction));
  const auto& running = running_[direction];
  const auto sharing =
      std::count_if(running.begin(), running.end(), [](const Running& each) { return each.fixed_left_ns == 0; });
  const double bytes_per_s = both ? link_.both_bytes_per_s[direction] : link_.bytes_per_s[direction];
  return bytes_per_s / 1e9 / static_cast<double>(std::max<int64_t>(sharing, 1));
}

int64_t SwapLink::next_event_ns() const {
  int64_t next_ns = kNever;
  for (const Direction direction : kDirections) {
    if (running_[direction].empty()) continue;
    const double speed = bytes_per_ns(direction);
    for (const Running& each : running_[direction]) {
      const int64_t left_ns = each.fixed_left_ns > 0
                                  ? each.fixed_left_ns
                                  : static_cast<int64_t>(std::ceil(std::max(each.bytes_left - kNothing, 0.0) / speed));
      next_ns = std::min(next_ns, now_ns_ + left_ns);
    }
  }
  return next_ns;
}

void SwapLink::advance_to(int64_t time_ns) {
  for (int64_t next_ns = next_event_ns(); next_ns <= time_ns; next_ns = next_event_ns()) {
    pass(next_ns - now_ns_);
    end_finished();
  }
  pass(time_ns - now_ns_);
}

void SwapLink::pass(int64_t duration_ns) {
  if (duration_ns <= 0) return;
  const std::array<double, 2> speed{bytes_per_ns(kToDevice), bytes_per_ns(kToHost)};
  for (const Direction direction : kDirections) {
    for (Running& each : running_[direction]) {
      if (each.fixed_left_ns > 0) {
        each.fixed_left_ns -= duration_ns;
      } else {
        each.bytes_left -= speed[direction] * static_cast<double>(duration_ns);
      }
    }
  }
  now_ns_ += duration_ns;
}

// All that end at one moment end before anything starts: what they free is there for all that wait.
void SwapLink::end_finished() {
  for (const Direction direction : kDirections) {
    auto& running = running_[direction];
    for (size_t index = 0; index < running.size();) {
      if (running[index].fixed_left_ns > 0 || running[index].bytes_left > kNothing) {
        ++index;
        continue;
      }
      const Running done = running[index];
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
      engines_used_[direction] &= ~(1u << done.engine);
      listener_.ended(direction, done.copy, done.start_ns, done.engine);
    }
  }
  start_waiting();
}

void SwapLink::rename(const std::vector<int32_t>& names) {
  for (const Direction direction : kDirections) {
    for (Copy& copy : queued_[direction]) copy.storage = names[static_cast<size_t>(copy.storage)];
    for (Running& each : running_[direction]) each.copy.storage = names[static_cast<size_t>(each.copy.storage)];
  }
}

}  // namespace um::simulator
