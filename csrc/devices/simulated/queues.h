// Streams and events of a simulated GPU, in virtual time. As all work has a known length, when it will have ended is
// known when it is given: an event is the time at which it happens, and only the host ever waits.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "devices/simulated/clock.h"

namespace um::simulator {

// The stream of the ops is 0 and always there, the clock's compute queue.
class Queues {
 public:
  using Stream = uint64_t;
  using Event = uint64_t;

  explicit Queues(Clock& clock) : clock_(clock) {}

  Stream create_stream();
  bool destroy_stream(Stream stream) { return stream != 0 && ends_ns_.erase(stream) > 0; }
  bool has_stream(Stream stream) const { return stream == 0 || ends_ns_.count(stream) > 0; }
  // When everything that the stream, or any, was given until now will have ended.
  int64_t end_ns(Stream stream) const;
  int64_t end_ns() const;
  // What the stream is given from now on begins no earlier.
  void hold(Stream stream, int64_t until_ns);
  void copy(Stream stream, int direction, int64_t bytes);

  Event create_event();
  bool destroy_event(Event event) { return events_ns_.erase(event) > 0; }
  // When it happens; 0 for one that was never recorded. nullptr: there is no such event.
  int64_t* time_ns(Event event);

 private:
  Clock& clock_;
  std::unordered_map<Stream, int64_t> ends_ns_;
  std::unordered_map<Event, int64_t> events_ns_;
  uint64_t last_ = 2;  // handle of either, none of CUDA's own streams
};

}  // namespace um::simulator
