#include "launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "fake_libcudart.h"

namespace cuda_kernels {
namespace {

struct Launched {
  int device;
  std::string name;
  std::function<void()> compute;
};

// What each kernel takes that computes nothing, as memory is hollow; 0: all compute.
std::chrono::microseconds hollow_time() {
  const char* const us = std::getenv("STAND_IN_HOLLOW_US");  // NOLINT(concurrency-mt-unsafe): once, and nobody sets it
  return std::chrono::microseconds(us != nullptr ? std::atol(us) : 0);
}

void run(void* argument) {
  const std::unique_ptr<Launched> launched(static_cast<Launched*>(argument));
  const KernelsOnly kernels_only;
  const auto fail = [&](const char* why) {
    fake_libcudart_kernel_failed(launched->device, (launched->name + ": " + why).c_str());
  };
  try {
    static const auto hollow = hollow_time();
    if (hollow.count() == 0) return launched->compute();
    std::this_thread::sleep_for(hollow);
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(error.what());
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
