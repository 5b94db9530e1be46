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
  if (stream == 0) return synchronous_ ? wait(until_ns) : clock_.hold_ops(until_ns);
  int64_t& end = ends_ns_.at(stream);
  end = std::max(end, until_ns);
}

void Queues::copy(Stream stream, int direction, int64_t bytes) {
  hold(stream, clock_.copy_beside(direction, end_ns(stream), bytes));
}

void Queues::wait(int64_t until_ns) {
  waited_ns_ += std::max<int64_t>(until_ns - clock_.host_ns(), 0);
  if (synchronous_) clock_.wait_for(until_ns);
  clock_.host_waits(until_ns);
}

// ---- functions of a driver ------------------------------------------------------------------------------------------

namespace queue_calls {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the driver's types

namespace {

CUresult done_if(bool holds) { return holds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

Queues::Stream stream_of(CUstream stream) {
  return stream == legacy_stream() ? 0 : reinterpret_cast<Queues::Stream>(stream);
}

int64_t* time_of(Queues& queues, CUevent event) { return queues.time_ns(reinterpret_cast<Queues::Event>(event)); }

}  // namespace

CUresult stream_create(Queues& queues, CUstream* stream) {
  *stream = reinterpret_cast<CUstream>(queues.create_stream());
  return CUDA_SUCCESS;
}

CUresult stream_destroy(Queues& queues, CUstream stream) { return done_if(queues.destroy_stream(stream_of(stream))); }

CUresult stream_query(const Queues& queues, CUstream stream) {
  if (!queues.has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  return queues.passed(queues.end_ns(stream_of(stream))) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult stream_synchronize(Queues& queues, CUstream stream) {
  if (!queues.has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  queues.wait(queues.end_ns(stream_of(stream)));
  return CUDA_SUCCESS;
}

CUresult stream_wait_event(Queues& queues, CUstream stream, CUevent event) {
  const int64_t* time_ns = time_of(queues, event);
  if (time_ns == nullptr || !queues.has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  queues.hold(stream_of(stream), *time_ns);
  return CUDA_SUCCESS;
}

CUresult event_create(Queues& queues, CUevent* event) {
  *event = reinterpret_cast<CUevent>(queues.create_event());
  return CUDA_SUCCESS;
}

CUresult event_destroy(Queues& queues, CUevent event) {
  return done_if(queues.destroy_event(reinterpret_cast<Queues::Event>(event)));
}

CUresult event_record(Queues& queues, CUevent event, CUstream stream) {
  int64_t* time_ns = time_of(queues, event);
  if (time_ns == nullptr || !queues.has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  *time_ns = queues.end_ns(stream_of(stream));
  return CUDA_SUCCESS;
}

CUresult event_query(Queues& queues, CUevent event) {
  const int64_t* time_ns = time_of(queues, event);
  if (time_ns == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return queues.passed(*time_ns) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(Queues& queues, CUevent event) {
  const int64_t* time_ns = time_of(queues, event);
  if (time_ns == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  queues.wait(*time_ns);
  return CUDA_SUCCESS;
}

CUresult event_elapsed_time(Queues& queues, float* milliseconds, CUevent first, CUevent second) {
  const int64_t *first_ns = time_of(queues, first), *second_ns = time_of(queues, second);
  if (first_ns == nullptr || second_ns == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!queues.passed(std::max(*first_ns, *second_ns))) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(*second_ns - *first_ns) * 1e-6);
  return CUDA_SUCCESS;
}

CUresult copy(Queues& queues, CUstream stream, int direction, size_t bytes) {
  if (!queues.has_stream(stream_of(stream))) return CUDA_ERROR_INVALID_HANDLE;
  queues.copy(stream_of(stream), direction, static_cast<int64_t>(bytes));
  return CUDA_SUCCESS;
}

}  // namespace queue_calls

}  // namespace um::simulator
