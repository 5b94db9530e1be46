// Driver functions about streams and events.
#include <memory>
#include <utility>

#include "devices/emulated/call.h"

namespace um::emulated::functions {

namespace {

EventObject* event_of(CUevent event) { return reinterpret_cast<EventObject*>(event); }

}  // namespace

CUresult stream_create(CUstream* stream, unsigned flags) {
  const Call call(Function::stream_create);
  if (call.failed()) return call.result;
  auto made = std::make_unique<Stream>((flags & CU_STREAM_NON_BLOCKING) == 0, call.device->space.delays);
  *stream = reinterpret_cast<CUstream>(made.get());
  const std::lock_guard<std::mutex> guard(call.device->streams_lock);
  call.device->streams.insert(std::move(made));
  return CUDA_SUCCESS;
}

CUresult stream_destroy(CUstream stream) {
  const Call call(Function::stream_destroy);
  if (call.failed()) return call.result;
  const std::lock_guard<std::mutex> guard(call.device->streams_lock);
  for (auto each = call.device->streams.begin(); each != call.device->streams.end(); ++each) {
    if (each->get() != stream_of(stream)) continue;
    call.device->streams.erase(each);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_synchronize(CUstream stream) {
  const Call call(Function::stream_synchronize);
  if (call.failed()) return call.result;
  Stream* target = stream_of(stream);
  if (target == nullptr) {
    call.device->wait_for_blocking_streams();
    return call.outcome();
  }
  if (!call.device->owns(target)) return CUDA_ERROR_INVALID_HANDLE;
  if (!left_out(Wait::emulated_stream_synchronize)) target->synchronize();
  return call.outcome();
}

CUresult stream_query(CUstream stream) {
  const Call call(Function::stream_query);
  if (call.failed()) return call.result;
  Stream* target = stream_of(stream);
  if (target == nullptr) return CUDA_SUCCESS;
  if (!call.device->owns(target)) return CUDA_ERROR_INVALID_HANDLE;
  return target->idle() ? call.outcome() : CUDA_ERROR_NOT_READY;
}

CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags) {
  const Call call(Function::stream_wait_event);
  if (call.failed()) return call.result;
  if (event == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Completion awaited = event_of(event)->last();
  if (!awaited.valid() || left_out(Wait::emulated_stream_wait_event)) return CUDA_SUCCESS;
  return submitted(call.device->submit(stream_of(stream), [awaited] { awaited.wait(); }));
}

CUresult event_create(CUevent* event, unsigned flags) {
  const Call call(Function::event_create);
  if (call.failed()) return call.result;
  auto* made = new EventObject;
  made->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = reinterpret_cast<CUevent>(made);
  return CUDA_SUCCESS;
}

CUresult event_destroy(CUevent event) {
  const Call call(Function::event_destroy);
  if (!call.failed()) delete event_of(event);
  return call.result;
}

CUresult event_record(CUevent event, CUstream stream) {
  const Call call(Function::event_record);
  if (call.failed()) return call.result;
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto end_ns = std::make_shared<std::promise<int64_t>>();
  Completion completion = end_ns->get_future();
  const bool given = call.device->submit(stream_of(stream), [end_ns] { end_ns->set_value(now_ns()); });
  if (given) {  // only now: nobody may wait for what no stream will finish
    const std::lock_guard<std::mutex> guard(event_of(event)->lock);
    event_of(event)->latest = std::move(completion);
  }
  return submitted(given);
}

CUresult event_query(CUevent event) {
  const Call call(Function::event_query);
  if (call.failed()) return call.result;
  return finished(event_of(event)->last()) ? call.outcome() : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(CUevent event) {
  const Call call(Function::event_synchronize);
  if (call.failed()) return call.result;
  const Completion completion = event_of(event)->last();
  if (completion.valid() && !left_out(Wait::emulated_event_synchronize)) completion.wait();
  return call.outcome();
}

CUresult event_elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  const Call call(Function::event_elapsed_time);
  if (call.failed()) return call.result;
  const Completion first = event_of(start)->last();
  const Completion second = event_of(end)->last();
  if (!first.valid() || !second.valid() || !event_of(start)->timing || !event_of(end)->timing) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!finished(first) || !finished(second)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(second.get() - first.get()) * 1e-6);
  return CUDA_SUCCESS;
}

}  // namespace um::emulated::functions
