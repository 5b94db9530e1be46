// The driver, and the context that a thread has.
#include "runtime.h"

#include <dlfcn.h>

#include <array>
#include <memory>
#include <mutex>

namespace fake_libcudart {
namespace {

constexpr uint64_t kLegacyStream = 1;
constexpr int kMostDevices = 16;

template <class Pointer>
void find(const Libcuda& libcuda, const char* symbol, int version, Pointer* out) {
  void* found = nullptr;
  if (libcuda.get_proc_address(symbol, &found, version, kLegacyStream, nullptr) == driver::CUDA_SUCCESS &&
      found != nullptr) {
    *out = reinterpret_cast<Pointer>(found);
  }
}

Libcuda load() {
  Libcuda made;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return made;
  made.get_proc_address = reinterpret_cast<decltype(made.get_proc_address)>(dlsym(library, "cuGetProcAddress_v2"));
  made.kernel_failed = reinterpret_cast<decltype(made.kernel_failed)>(dlsym(library, "emulated_libcuda_kernel_failed"));
  if (made.get_proc_address == nullptr) return made;
#define FIND(name, symbol, version, ...) find(made, #symbol, version, &made.call.name);
  UM_DRIVER_FUNCTIONS(FIND)
#undef FIND
  find(made, "cuPointerGetAttribute", 4000, &made.pointer_get_attribute);
  find(made, "cuLaunchHostFunc", 10000, &made.launch_host_function);
  made.error = static_cast<cudaError_t>(made.call.init(0));
  if (made.error == cudaSuccess) made.error = static_cast<cudaError_t>(made.call.device_get_count(&made.device_count));
  if (made.error == cudaSuccess && made.device_count == 0) made.error = cudaErrorNoDevice;
  return made;
}

std::mutex lock;
std::array<driver::CUcontext, kMostDevices> primary_contexts{};

cudaError_t primary_context(int device, driver::CUcontext* out) {
  const std::lock_guard<std::mutex> guard(lock);
  driver::CUcontext& context = primary_contexts[static_cast<size_t>(device)];
  if (context == nullptr) {
    const driver::CUresult result = libcuda().call.device_primary_ctx_retain(&context, device);
    if (result != driver::CUDA_SUCCESS) return static_cast<cudaError_t>(result);
  }
  *out = context;
  return cudaSuccess;
}

}  // namespace

// Never destroyed: frees may still come in while the process shuts down.
const Libcuda& libcuda() {
  static const auto* const loaded = new Libcuda(load());
  return *loaded;
}

int current_device() {
  driver::CUcontext current = nullptr;
  static_cast<void>(libcuda().call.ctx_get_current(&current));
  const std::lock_guard<std::mutex> guard(lock);
  for (int device = 0; current != nullptr && device < kMostDevices; ++device) {
    if (primary_contexts[static_cast<size_t>(device)] == current) return device;
  }
  return 0;
}

cudaError_t set_device(int device) {
  if (libcuda().error != cudaSuccess) return libcuda().error;
  if (device < 0 || device >= libcuda().device_count) return cudaErrorInvalidDevice;
  driver::CUcontext context = nullptr;
  if (const cudaError_t error = primary_context(device, &context); error != cudaSuccess) return error;
  return static_cast<cudaError_t>(libcuda().call.ctx_set_current(context));
}

cudaError_t ready() {
  if (libcuda().error != cudaSuccess) return libcuda().error;
  driver::CUcontext current = nullptr;
  static_cast<void>(libcuda().call.ctx_get_current(&current));
  return current != nullptr ? cudaSuccess : set_device(0);
}

cudaError_t launch(cudaStream_t stream, std::function<void()> work) {
  auto given = std::make_unique<std::function<void()>>(std::move(work));
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
    (*owned)();
  };
  const driver::CUresult result = libcuda().launch_host_function(in_driver(stream), run, given.get());
  if (result == driver::CUDA_SUCCESS) static_cast<void>(given.release());
  return static_cast<cudaError_t>(result);
}

}  // namespace fake_libcudart
