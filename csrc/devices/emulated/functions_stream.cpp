// Driver functions about streams and events.
#include <memory>
#include <utility>

#include "devices/emulated/call.h"

namespace um::emulated {

namespace {

CUresult stream_create(CUstream* stream, unsigned flags) {
  Call call(Function::stream_create);
  if (call.failed()) return call.result;
  auto made = std::make_unique<Stream>((flags & CU_STREAM_NON_BLOCKING) == 0, call.device->space.delays);
  *stream = reinterpret_cast<CUstream>(made.get());
  const std::lock_guard<std::mutex> guard(call.device->streams_lock);
  call.device->streams.insert(std::move(made));
  return CUDA_SUCCESS;
}

CUresult stream_destroy(CUstream stream) {
  Call call(Function::stream_destroy);
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
  Call call(Function::stream_synchronize);
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
  Call call(Function::stream_query);
  if (call.failed()) return call.result;
  Stream* target = stream_of(stream);
  if (target == nullptr) return CUDA_SUCCESS;
  if (!call.device->owns(target)) return CUDA_ERROR_INVALID_HANDLE;
  return target->idle() ? call.outcome() : CUDA_ERROR_NOT_READY;
}

EventObject* event_of(CUevent event) { return reinterpret_cast<EventObject*>(event); }

CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags) {
  Call call(Function::stream_wait_event);
  if (call.failed()) return call.result;
  if (event == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Completion> awaited = event_of(event)->last();
  if (awaited == nullptr || left_out(Wait::emulated_stream_wait_event)) return CUDA_SUCCESS;
  Stream* waiting = stream_of(stream);
  return submitted(call.device->submit(
      waiting, [awaited, waiting] { waiting != nullptr ? waiting->wait_for(*awaited) : awaited->wait(); }));
}

CUresult event_create(CUevent* event, unsigned flags) {
  Call call(Function::event_create);
  if (call.failed()) return call.result;
  auto* made = new EventObject;
  made->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = reinterpret_cast<CUevent>(made);
  return CUDA_SUCCESS;
}

CUresult event_destroy(CUevent event) {
  Call call(Function::event_destroy);
  if (call.failed()) return call.result;
  delete event_of(event);
  return CUDA_SUCCESS;
}

CUresult event_record(CUevent event, CUstream stream) {
  Call call(Function::event_record);
  if (call.failed()) return call.result;
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto completion = std::make_shared<Completion>();
  const bool given = call.device->submit(stream_of(stream), [completion] { completion->finish(); });
  if (given) {  // only now: nobody may wait for what no stream will finish
    const std::lock_guard<std::mutex> guard(event_of(event)->lock);
    event_of(event)->latest = std::move(completion);
  }
  return submitted(given);
}

CUresult event_query(CUevent event) {
  Call call(Function::event_query);
  if (call.failed()) return call.result;
  const std::shared_ptr<Completion> completion = event_of(event)->last();
  return completion == nullptr || completion->finished() ? call.outcome() : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(CUevent event) {
  Call call(Function::event_synchronize);
  if (call.failed()) return call.result;
  const std::shared_ptr<Completion> completion = event_of(event)->last();
  if (completion != nullptr && !left_out(Wait::emulated_event_synchronize)) completion->wait();
  return call.outcome();
}

CUresult event_elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  Call call(Function::event_elapsed_time);
  if (call.failed()) return call.result;
  const std::shared_ptr<Completion> first = event_of(start)->last();
  const std::shared_ptr<Completion> second = event_of(end)->last();
  if (first == nullptr || second == nullptr || !event_of(start)->timing || !event_of(end)->timing) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!first->finished() || !second->finished()) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(second->finished_ns() - first->finished_ns()) * 1e-6);
  return CUDA_SUCCESS;
}

}  // namespace

void fill_stream_functions(Table& table) {
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_synchronize = stream_synchronize;
  table.stream_query = stream_query;
  table.stream_wait_event = stream_wait_event;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_synchronize = event_synchronize;
  table.event_elapsed_time = event_elapsed_time;
}

}  // namespace um::emulated
