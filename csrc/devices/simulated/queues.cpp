#include "devices/simulated/queues.h"

#include <algorithm>

namespace um::simulator {

Queues::Stream Queues::create_stream() {
  ends_ns_.emplace(++last_, 0);
  return last_;
}

Queues::Event Queues::create_event() {
  events_ns_.emplace(++last_, 0);
  return last_;
}

int64_t* Queues::time_ns(Event event) {
  const auto found = events_ns_.find(event);
  return found == events_ns_.end() ? nullptr : &found->second;
}

int64_t Queues::end_ns(Stream stream) const {
  const int64_t given_ns = stream == 0 ? clock_.ops_end_ns() : ends_ns_.at(stream);
  return std::max(given_ns, clock_.host_ns());
}

int64_t Queues::end_ns() const {
  int64_t end = end_ns(0);
  for (const auto& each : ends_ns_) end = std::max(end, each.second);
  return end;
}

void Queues::hold(Stream stream, int64_t until_ns) {
  if (stream == 0) return clock_.hold_ops(until_ns);
  int64_t& end = ends_ns_.at(stream);
  end = std::max(end, until_ns);
}

void Queues::copy(Stream stream, int direction, int64_t bytes) {
  hold(stream, clock_.copy_beside(direction, end_ns(stream), bytes));
}

}  // namespace um::simulator
