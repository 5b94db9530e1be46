// A libcudart.so.13 in the place of NVIDIA's: the functions of CUDA's public runtime API that torch's libraries import,
// on whatever libcuda.so.1 is there, found as anybody finds it. No kernels are loaded: who computes them has launches
// of its own (csrc/tests/cuda_kernels), and a launch of any other loses the device, by name.
//
// Semantics: CUDA Runtime API Reference Manual 13.0, by the sections that each file is named after.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

#include "driver/table.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_libcudart {

namespace driver = um::driver;

struct Libcuda {
  driver::Table call = driver::kMissingTable;
  driver::CUresult (*get_proc_address)(const char*, void**, int, uint64_t, unsigned*) = nullptr;
  driver::CUresult (*pointer_get_attribute)(void*, int, driver::CUdeviceptr) = nullptr;
  driver::CUresult (*launch_host_function)(driver::CUstream, void (*)(void*), void*) = nullptr;
  void (*kernel_failed)(int) = nullptr;  // where the driver is a stand-in
  int device_count = 0;
  cudaError_t error = cudaErrorInsufficientDriver;  // of loading it, or of its initialisation
};
const Libcuda& libcuda();

// cudaSuccess, with the current device's primary context current in this thread, which is what the runtime does at the
// first call that needs one.
cudaError_t ready();
// The device whose primary context is current, else 0.
int current_device();
cudaError_t set_device(int device);

// Kept for cudaGetLastError.
cudaError_t returned(cudaError_t error);
inline cudaError_t returned(driver::CUresult result) { return returned(static_cast<cudaError_t>(result)); }
// Calls `function` once the runtime is ready.
template <class Function>
cudaError_t when_ready(const Function& function) {
  if (const cudaError_t error = ready(); error != cudaSuccess) return returned(error);
  return returned(function());
}

// The device is lost from now on, and errors say why: what cannot be computed must not be passed over.
void lose(int device, const std::string& why);
// Nobody needs this function here.
cudaError_t absent(const char* function);

// Gives work to a stream of the current device.
cudaError_t launch(cudaStream_t stream, std::function<void()> work);

enum class Where { host, pinned, device, managed };
Where where(const void* address, int* device);

inline driver::CUstream in_driver(cudaStream_t stream) { return reinterpret_cast<driver::CUstream>(stream); }
inline driver::CUevent in_driver(cudaEvent_t event) { return reinterpret_cast<driver::CUevent>(event); }
inline driver::CUdeviceptr in_driver(const void* address) { return reinterpret_cast<driver::CUdeviceptr>(address); }

}  // namespace fake_libcudart
