// Stream and event management.
#include "runtime.h"

using namespace fake_libcudart;  // NOLINT(google-build-using-namespace): this library is the runtime

// Priorities are hints, which this device does not take.
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return when_ready([&] { return libcuda().call.stream_create(reinterpret_cast<driver::CUstream*>(stream), flags); });
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return when_ready([&] { return libcuda().call.stream_destroy(in_driver(stream)); });
}
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return when_ready([&] { return libcuda().call.stream_synchronize(in_driver(stream)); });
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return when_ready([&] { return libcuda().call.stream_query(in_driver(stream)); });
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return when_ready([&] { return libcuda().call.stream_wait_event(in_driver(stream), in_driver(event), flags); });
}
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return when_ready([&] { return libcuda().launch_host_function(in_driver(stream), function, argument); });
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* argument, unsigned) {
  return when_ready([&] { return launch(stream, [=] { function(stream, cudaSuccess, argument); }); });
}

// No stream is ever captured: there are no graphs (absent.cpp).
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                            cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return when_ready([&] { return libcuda().call.event_create(reinterpret_cast<driver::CUevent*>(event), flags); });
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return when_ready([&] { return libcuda().call.event_destroy(in_driver(event)); });
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return when_ready([&] { return libcuda().call.event_record(in_driver(event), in_driver(stream)); });
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  return when_ready([&] { return libcuda().call.event_query(in_driver(event)); });
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return when_ready([&] { return libcuda().call.event_synchronize(in_driver(event)); });
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return when_ready([&] { return libcuda().call.event_elapsed_time(milliseconds, in_driver(start), in_driver(end)); });
}
