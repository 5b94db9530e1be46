#include "launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "fake_libcudart.h"

namespace cuda_kernels {
namespace {

struct Launched {
  int device;
  std::string name;
  std::function<void()> compute;
};

void run(void* argument) {
  const std::unique_ptr<Launched> launched(static_cast<Launched*>(argument));
  const KernelsOnly kernels_only;
  try {
    launched->compute();
  } catch (const std::exception& error) {
    fake_libcudart_kernel_failed(launched->device, (launched->name + ": " + error.what()).c_str());
  }
}

}  // namespace

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device); }

void launch(c10::Device device, const std::string& name, std::function<void()> compute) {
  const auto stream = static_cast<cudaStream_t>(current_stream(device).native_handle());
  auto* const launched = new Launched{device.index(), name, std::move(compute)};  // whoever runs it deletes it
  const cudaError_t error = cudaLaunchHostFunc(stream, run, launched);
  TORCH_CHECK(error == cudaSuccess, "CUDA error: ", cudaGetErrorString(error));
}

}  // namespace cuda_kernels
