// Driver functions that copy and fill.
#include <cstring>
#include <memory>

#include "driver/emulated/call.h"

namespace um::emulated {

namespace {

// Between any two of host, managed and plain memory, through a bounce where both sides are a device's.
void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  Device* target = device_of(to);
  Device* source = device_of(from);
  if (target == nullptr && source == nullptr) {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  } else if (source == nullptr) {
    target->space.copy_in(to, reinterpret_cast<const char*>(from), bytes);
  } else if (target == nullptr) {
    source->space.copy_out(reinterpret_cast<char*>(to), from, bytes);
  } else {
    const std::unique_ptr<char[]> bounce(new char[kBlockBytes]);
    for (size_t done = 0; done < bytes; done += kBlockBytes) {
      const size_t piece = bytes - done < kBlockBytes ? bytes - done : kBlockBytes;
      source->space.copy_out(bounce.get(), from + done, piece);
      target->space.copy_in(to + done, bounce.get(), piece);
    }
  }
}

CUresult copy_in_stream(Function function, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  Device* device = device_of(to) != nullptr ? device_of(to) : device_of(from);
  Call call(function, device != nullptr ? device : device_at(current_ordinal));
  if (call.failed()) return call.result;
  if (to == 0 || from == 0) return CUDA_ERROR_INVALID_VALUE;
  return submitted(call.device->submit(stream_of(stream), [=] { copy(to, from, bytes); }));
}

CUresult memcpy_htod_async(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  if (device_of(to) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return copy_in_stream(Function::memcpy_htod_async, to, reinterpret_cast<CUdeviceptr>(from), bytes, stream);
}

CUresult memcpy_dtoh_async(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (device_of(from) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return copy_in_stream(Function::memcpy_dtoh_async, reinterpret_cast<CUdeviceptr>(to), from, bytes, stream);
}

CUresult memset_d8_async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
  Call call(Function::memset_d8_async, device_of(address));
  if (call.device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.failed()) return call.result;
  Space& space = call.device->space;
  return submitted(call.device->submit(stream_of(stream), [=, &space] { space.fill(address, value, bytes); }));
}

}  // namespace

void fill_copy_functions(Table& table) {
  table.memcpy_htod_async = memcpy_htod_async;
  table.memcpy_dtoh_async = memcpy_dtoh_async;
  table.memset_d8_async = memset_d8_async;
}

}  // namespace um::emulated
