// Memory management: allocation, and whose memory lies where.
#include <cstring>
#include <map>
#include <mutex>

#include "runtime.h"

namespace fake_libcudart {
namespace {

// Page-locked host memory by its first byte.
std::mutex lock;
std::map<const char*, size_t>& pinned() {
  static auto* const ranges = new std::map<const char*, size_t>;
  return *ranges;
}

void pin(const void* address, size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock);
  pinned()[static_cast<const char*>(address)] = bytes;
}

void unpin(const void* address) {
  const std::lock_guard<std::mutex> guard(lock);
  pinned().erase(static_cast<const char*>(address));
}

bool is_pinned(const void* address) {
  const std::lock_guard<std::mutex> guard(lock);
  auto range = pinned().upper_bound(static_cast<const char*>(address));
  if (range == pinned().begin()) return false;
  --range;
  return static_cast<const char*>(address) < range->first + range->second;
}

}  // namespace

Where where(const void* address, int* device) {
  constexpr int kIsManaged = 8, kDeviceOrdinal = 9;  // CUpointer_attribute of cuda.h
  unsigned managed = 0;
  const Libcuda& driver = libcuda();
  if (driver.pointer_get_attribute(&managed, kIsManaged, in_driver(address)) != driver::CUDA_SUCCESS)
    return is_pinned(address) ? Where::pinned : Where::host;
  int ordinal = 0;
  static_cast<void>(driver.pointer_get_attribute(&ordinal, kDeviceOrdinal, in_driver(address)));
  if (device != nullptr) *device = ordinal;
  return managed != 0 ? Where::managed : Where::device;
}

}  // namespace fake_libcudart

using namespace fake_libcudart;  // NOLINT(google-build-using-namespace): this library is the runtime

EXPORT cudaError_t cudaMalloc(void** address, size_t bytes) {
  return when_ready([&] {
    *address = nullptr;
    if (bytes == 0) return driver::CUDA_SUCCESS;
    return libcuda().call.mem_alloc(reinterpret_cast<driver::CUdeviceptr*>(address), bytes);
  });
}

EXPORT cudaError_t cudaFree(void* address) {
  return when_ready(
      [&] { return address == nullptr ? driver::CUDA_SUCCESS : libcuda().call.mem_free(in_driver(address)); });
}

EXPORT cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return when_ready([&] { return libcuda().call.mem_get_info(free_bytes, total_bytes); });
}

EXPORT cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  return when_ready([&] {
    const driver::CUresult result = libcuda().call.mem_host_alloc(address, bytes, 0);
    if (result == driver::CUDA_SUCCESS) pin(*address, bytes);
    return result;
  });
}

// Waits for the device, as what it was given may still use the memory.
EXPORT cudaError_t cudaFreeHost(void* address) {
  return when_ready([&] {
    unpin(address);
    static_cast<void>(libcuda().call.ctx_synchronize());
    return libcuda().call.mem_free_host(address);
  });
}

EXPORT cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  pin(address, bytes);
  return cudaSuccess;
}

EXPORT cudaError_t cudaHostUnregister(void* address) {
  unpin(address);
  return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* address) {
  return when_ready([&] {
    *out = {};
    auto* const pointer = const_cast<void*>(address);
    out->device = current_device();
    switch (where(address, &out->device)) {
      case Where::host:
        out->type = cudaMemoryTypeUnregistered;
        out->device = cudaInvalidDeviceId;
        out->hostPointer = pointer;
        break;
      case Where::pinned:
        out->type = cudaMemoryTypeHost;
        out->hostPointer = out->devicePointer = pointer;
        break;
      case Where::device:
        out->type = cudaMemoryTypeDevice;
        out->devicePointer = pointer;
        break;
      case Where::managed:
        out->type = cudaMemoryTypeManaged;
        out->hostPointer = out->devicePointer = pointer;
    }
    return cudaSuccess;
  });
}
