// Error handling, and the versions.
#include <cstdio>
#include <mutex>

#include "fake_libcudart.h"
#include "runtime.h"

namespace fake_libcudart {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

// Of the first device that was lost; written once, read by whoever asks for an error's text.
std::mutex lock;
std::string* why_lost = nullptr;

const char* loss() {
  const std::lock_guard<std::mutex> guard(lock);
  return why_lost != nullptr ? why_lost->c_str() : nullptr;
}

}  // namespace

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void lose(int device, const std::string& why) {
  {
    const std::lock_guard<std::mutex> guard(lock);
    if (why_lost == nullptr) why_lost = new std::string(why);
  }
  std::fprintf(stderr, "stand-in for a GPU: %s\n", why.c_str());
  if (libcuda().kernel_failed != nullptr) libcuda().kernel_failed(device);
}

cudaError_t absent(const char* function) {
  std::fprintf(stderr, "the stand-in for libcudart.so.13 does without %s\n", function);
  return returned(cudaErrorNotSupported);
}

}  // namespace fake_libcudart

using namespace fake_libcudart;  // NOLINT(google-build-using-namespace): this library is the runtime

EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }

EXPORT const char* cudaGetErrorName(cudaError_t error) {
  const char* name = nullptr;
  const auto result = static_cast<driver::CUresult>(error);
  if (libcuda().call.get_error_name(result, &name) != driver::CUDA_SUCCESS || name == nullptr) return "unrecognized";
  return name;
}

EXPORT const char* cudaGetErrorString(cudaError_t error) {
  const char* text = nullptr;
  if (error == cudaErrorIllegalAddress && (text = loss()) != nullptr) return text;
  const auto result = static_cast<driver::CUresult>(error);
  if (libcuda().call.get_error_string(result, &text) != driver::CUDA_SUCCESS || text == nullptr) return "unrecognized";
  return text;
}

EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  if (libcuda().call.driver_get_version(version) != driver::CUDA_SUCCESS) *version = 0;
  return cudaSuccess;
}

EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                    unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return when_ready([&] {
    const uint64_t stream = flags == cudaEnableDefault ? uint64_t{cudaEnableLegacyStream} : flags;
    const auto result = libcuda().get_proc_address(symbol, function, static_cast<int>(version), stream, nullptr);
    if (status != nullptr)
      *status = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return result;
  });
}

EXPORT void fake_libcudart_kernel_failed(int device, const char* why) { lose(device, why); }
