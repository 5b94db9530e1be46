// Memory management: copies and fills. What a call says of the kind of a copy is not needed: addresses tell.
#include <cstring>
#include <memory>

#include "runtime.h"

using namespace fake_libcudart;  // NOLINT(google-build-using-namespace): this library is the runtime

namespace {

bool on_device(const void* address) {
  const Where place = where(address, nullptr);
  return place == Where::device || place == Where::managed;
}

bool pageable(const void* address) { return where(address, nullptr) == Where::host; }

cudaError_t to_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  return static_cast<cudaError_t>(libcuda().call.memcpy_htod_async(in_driver(to), from, bytes, in_driver(stream)));
}

// Pageable memory may be changed as soon as the call has returned, although the copy has not begun: it was staged.
cudaError_t staged(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const std::shared_ptr<char> staging(new char[bytes], std::default_delete<char[]>());
  std::memcpy(staging.get(), from, bytes);
  const cudaError_t error = to_device(to, staging.get(), bytes, stream);
  return error != cudaSuccess ? error : launch(stream, [staging] {});
}

// What goes to pageable memory is there when the call returns (API synchronization behavior, "Memcpy").
cudaError_t to_host(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  driver::CUresult result = libcuda().call.memcpy_dtoh_async(to, in_driver(from), bytes, in_driver(stream));
  if (result == driver::CUDA_SUCCESS && pageable(to)) result = libcuda().call.stream_synchronize(in_driver(stream));
  return static_cast<cudaError_t>(result);
}

// The driver's copies are in streams of the destination's device; between devices they may be in the other's.
bool between_devices(const void* to, const void* from) {
  int there = -1, here = -1;
  where(to, &there);
  where(from, &here);
  return there >= 0 && here >= 0 && there != here;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (between_devices(to, from)) return launch(stream, [=] { std::memcpy(to, from, bytes); });
  if (on_device(to)) return pageable(from) ? staged(to, from, bytes, stream) : to_device(to, from, bytes, stream);
  if (on_device(from)) return to_host(to, from, bytes, stream);
  return launch(stream, [=] { std::memcpy(to, from, bytes); });
}

}  // namespace

EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return when_ready([&] { return copy(to, from, bytes, stream); });
}

EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return when_ready([&] {
    const cudaError_t error = copy(to, from, bytes, nullptr);
    return error != cudaSuccess ? error : static_cast<cudaError_t>(libcuda().call.stream_synchronize(nullptr));
  });
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return when_ready([&] { return copy(to, from, bytes, stream); });
}

EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return when_ready([&] {
    for (size_t row = 0; row < height; ++row) {
      const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch,
                                     static_cast<const char*>(from) + row * from_pitch, width, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

EXPORT cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  return when_ready([&] {
    if (bytes == 0) return cudaSuccess;
    if (!on_device(address)) return launch(stream, [=] { std::memset(address, value, bytes); });
    return static_cast<cudaError_t>(libcuda().call.memset_d8_async(
        in_driver(address), static_cast<unsigned char>(value), bytes, in_driver(stream)));
  });
}

EXPORT cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  return cudaMemsetAsync(address, value, bytes, nullptr);
}
