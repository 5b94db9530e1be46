// Streams and events in virtual time. As all work has a known length, when it will have ended is known when it is
// given: an event is the time at which it happens, and only the host ever waits.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "devices/simulated/clock.h"
#include "driver/types.h"

namespace um::simulator {

// The stream of the ops is 0 and always there, the clock's compute queue.
class Queues {
 public:
  using Stream = uint64_t;
  using Event = uint64_t;

  // `synchronous`: the ops run in the host's thread, as the emulated device's do. What their stream waits for, the host
  // waits for too.
  explicit Queues(Clock& clock, bool synchronous = false) : clock_(clock), synchronous_(synchronous) {}

  bool synchronous() const { return synchronous_; }

  Stream create_stream();
  bool destroy_stream(Stream stream) { return stream != 0 && ends_ns_.erase(stream) > 0; }
  bool has_stream(Stream stream) const { return stream == 0 || ends_ns_.count(stream) > 0; }
  // When everything that the stream, or any, was given until now will have ended.
  int64_t end_ns(Stream stream) const;
  int64_t end_ns() const;
  // What the stream is given from now on begins no earlier.
  void hold(Stream stream, int64_t until_ns);
  void copy(Stream stream, int direction, int64_t bytes);
  // The host goes on then.
  void wait(int64_t until_ns);
  int64_t take_waited_ns() { return std::exchange(waited_ns_, 0); }
  bool passed(int64_t time_ns) const { return time_ns <= clock_.host_ns(); }

  Event create_event();
  bool destroy_event(Event event) { return events_ns_.erase(event) > 0; }
  // When it happens; 0 for one that was never recorded. nullptr: there is no such event.
  int64_t* time_ns(Event event);

 private:
  Clock& clock_;
  const bool synchronous_;
  int64_t waited_ns_ = 0;  // by the host
  std::unordered_map<Stream, int64_t> ends_ns_;
  std::unordered_map<Event, int64_t> events_ns_;
  uint64_t last_ = 2;  // handle of either, none of CUDA's own streams
};

// Functions of a driver's table, of which a stream is one of the queues.
namespace queue_calls {

driver::CUresult stream_create(Queues& queues, driver::CUstream* stream);
driver::CUresult stream_destroy(Queues& queues, driver::CUstream stream);
driver::CUresult stream_query(const Queues& queues, driver::CUstream stream);
driver::CUresult stream_synchronize(Queues& queues, driver::CUstream stream);
driver::CUresult stream_wait_event(Queues& queues, driver::CUstream stream, driver::CUevent event);
driver::CUresult event_create(Queues& queues, driver::CUevent* event);
driver::CUresult event_destroy(Queues& queues, driver::CUevent event);
driver::CUresult event_record(Queues& queues, driver::CUevent event, driver::CUstream stream);
driver::CUresult event_query(Queues& queues, driver::CUevent event);
driver::CUresult event_synchronize(Queues& queues, driver::CUevent event);
driver::CUresult event_elapsed_time(Queues& queues, float* milliseconds, driver::CUevent first, driver::CUevent second);
driver::CUresult copy(Queues& queues, driver::CUstream stream, int direction, size_t bytes);

}  // namespace queue_calls

}  // namespace um::simulator
