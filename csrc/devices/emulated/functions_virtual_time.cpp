// Driver functions of an emulated device in virtual time: streams and events are those of a simulated GPU, and what is
// given to a stream has run when the call returns.
#include "devices/emulated/call.h"
#include "devices/emulated/copies.h"
#include "driver/driver.h"

namespace um::emulated {

void VirtualTime::run_op(int64_t duration_ns) {
  const std::lock_guard<std::mutex> guard(lock_);
  clock_.begin_op(-1, simulator::FaultShape{});
  clock_.end_op(duration_ns, true);
  static_cast<void>(clock_.take_spans());  // nobody looks at them
}

namespace {

using simulator::Queues;
namespace queue_calls = simulator::queue_calls;

// Counted, and failed where a test asks for it.
template <Function kFunction, class Work>
CUresult with_queues(const Work& work) {
  const Call call(kFunction);
  return call.failed() ? call.result : call.device->time->with_queues(work);
}

CUresult stream_create(CUstream* stream, unsigned) {
  return with_queues<Function::stream_create>(
      [&](Queues& queues) { return queue_calls::stream_create(queues, stream); });
}

CUresult stream_destroy(CUstream stream) {
  return with_queues<Function::stream_destroy>(
      [&](Queues& queues) { return queue_calls::stream_destroy(queues, stream); });
}

CUresult stream_query(CUstream stream) {
  return with_queues<Function::stream_query>([&](Queues& queues) { return queue_calls::stream_query(queues, stream); });
}

CUresult stream_synchronize(CUstream stream) {
  return with_queues<Function::stream_synchronize>(
      [&](Queues& queues) { return queue_calls::stream_synchronize(queues, stream); });
}

CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
  return with_queues<Function::stream_wait_event>(
      [&](Queues& queues) { return queue_calls::stream_wait_event(queues, stream, event); });
}

CUresult event_create(CUevent* event, unsigned) {
  return with_queues<Function::event_create>([&](Queues& queues) { return queue_calls::event_create(queues, event); });
}

CUresult event_destroy(CUevent event) {
  return with_queues<Function::event_destroy>(
      [&](Queues& queues) { return queue_calls::event_destroy(queues, event); });
}

CUresult event_record(CUevent event, CUstream stream) {
  return with_queues<Function::event_record>(
      [&](Queues& queues) { return queue_calls::event_record(queues, event, stream); });
}

CUresult event_query(CUevent event) {
  return with_queues<Function::event_query>([&](Queues& queues) { return queue_calls::event_query(queues, event); });
}

CUresult event_synchronize(CUevent event) {
  return with_queues<Function::event_synchronize>(
      [&](Queues& queues) { return queue_calls::event_synchronize(queues, event); });
}

CUresult event_elapsed_time(float* milliseconds, CUevent first, CUevent second) {
  return with_queues<Function::event_elapsed_time>(
      [&](Queues& queues) { return queue_calls::event_elapsed_time(queues, milliseconds, first, second); });
}

CUresult ctx_synchronize() {
  return with_queues<Function::ctx_synchronize>([](Queues& queues) {
    queues.wait(queues.end_ns());
    return CUDA_SUCCESS;
  });
}

// `address`: the end that must be the device's.
CUresult copied(Function function, CUdeviceptr address, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                CUstream stream) {
  const Call call(function, address);
  if (call.failed()) return call.result;
  if (!may_copy(to, bytes) || !may_copy(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  copy(to, from, bytes);
  const int direction = address == to ? 0 : 1;
  return call.device->time->with_queues(
      [&](Queues& queues) { return queue_calls::copy(queues, stream, direction, bytes); });
}

CUresult memcpy_htod_async(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copied(Function::memcpy_htod_async, to, to, reinterpret_cast<CUdeviceptr>(from), bytes, stream);
}

CUresult memcpy_dtoh_async(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copied(Function::memcpy_dtoh_async, from, reinterpret_cast<CUdeviceptr>(to), from, bytes, stream);
}

// By the device itself, in no time.
CUresult memset_d8_async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream) {
  const Call call(Function::memset_d8_async, address);
  if (call.failed()) return call.result;
  if (!may_copy(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  fill(address, value, bytes);
  return CUDA_SUCCESS;
}

// Whatever the stream, as copies: all that was given before has run.
CUresult mem_prefetch_async(CUdeviceptr address, size_t bytes, CUmemLocation where, unsigned flags, CUstream) {
  return driver::emulated()->call.mem_prefetch_async(address, bytes, where, flags, nullptr);
}

}  // namespace
}  // namespace um::emulated

namespace um::driver {

const Driver* emulated_in_virtual_time() {
  using namespace um::emulated;  // NOLINT(google-build-using-namespace)
  static const Driver driver = [] {
    Driver made = *emulated();
    made.call.stream_create = stream_create;
    made.call.stream_destroy = stream_destroy;
    made.call.stream_query = stream_query;
    made.call.stream_synchronize = stream_synchronize;
    made.call.stream_wait_event = stream_wait_event;
    made.call.event_create = event_create;
    made.call.event_destroy = event_destroy;
    made.call.event_record = event_record;
    made.call.event_query = event_query;
    made.call.event_synchronize = event_synchronize;
    made.call.event_elapsed_time = event_elapsed_time;
    made.call.ctx_synchronize = ctx_synchronize;
    made.call.memcpy_htod_async = memcpy_htod_async;
    made.call.memcpy_dtoh_async = memcpy_dtoh_async;
    made.call.memset_d8_async = memset_d8_async;
    made.call.mem_prefetch_async = mem_prefetch_async;
    return made;
  }();
  return &driver;
}

}  // namespace um::driver
