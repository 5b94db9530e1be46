// Execution control: the kernels of torch's libraries, which register themselves when they are loaded. None can run.
// The one that keeps a stream busy for some cycles is known by name; any other launch loses the device.
#include <cxxabi.h>
#include <time.h>

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime.h"

using namespace fake_libcudart;  // NOLINT(google-build-using-namespace): this library is the runtime

namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

std::mutex lock;
// Names by the address of the host's half. Registered by static constructors, so made at first use.
std::unordered_map<const void*, const char*>& kernels() {
  static auto* const made = new std::unordered_map<const void*, const char*>;
  return *made;
}

std::string name_of(const void* kernel) {
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = kernels().find(kernel);
  if (found == kernels().end()) return "an unregistered kernel";
  int status = 0;
  char* const readable = abi::__cxa_demangle(found->second, nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : found->second;
  std::free(readable);
  return name;
}

// torch.cuda._sleep, at the clock that the device tells.
void spin(int64_t cycles) {
  constexpr int64_t kCyclesPerUs = 1410;
  const int64_t us = cycles / kCyclesPerUs;
  const timespec span{us / 1000000, us % 1000000 * 1000};
  nanosleep(&span, nullptr);
}

cudaError_t launch_kernel(const void* kernel, void** arguments, cudaStream_t stream) {
  return when_ready([&] {
    const std::string name = name_of(kernel);
    if (name.find("spin_kernel") != std::string::npos) {
      const int64_t cycles = *static_cast<int64_t*>(arguments[0]);
      return launch(stream, [cycles] { spin(cycles); });
    }
    lose(current_device(), "nobody computes the kernel " + name);
    return cudaErrorIllegalAddress;
  });
}

}  // namespace

EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                   int*) {
  const std::lock_guard<std::mutex> guard(lock);
  kernels()[host] = name;
}
EXPORT char __cudaInitModule(void**) { return 1; }

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  if (configurations.empty()) return returned(cudaErrorMissingConfiguration);
  const Configuration& last = configurations.back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  configurations.pop_back();
  return cudaSuccess;
}

// A cudaKernel_t is the host's address here.
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch_kernel(kernel, arguments, stream);
}
EXPORT cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch_kernel(kernel, arguments, stream);
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void** arguments, size_t,
                                               cudaStream_t stream) {
  return launch_kernel(kernel, arguments, stream);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* kernel, void** arguments) {
  return launch_kernel(kernel, arguments, configuration->stream);
}

// What is asked on the way to a launch, as of a small kernel.
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
  *out = {};
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 32;
  out->ptxVersion = out->binaryVersion = 80;
  out->maxDynamicSharedSizeBytes = 160 << 10;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel, int threads,
                                                                          size_t shared_bytes, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared_bytes);
}
