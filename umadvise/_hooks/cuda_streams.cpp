#include "cuda_streams.h"

#include <dlfcn.h>

#include <atomic>

#include "errors.h"

namespace um::hooks {
namespace {

// A function of torch's stable C ABI (torch/csrc/inductor/aoti_torch/c/shim.h), in the library of its CUDA part. It is
// not linked, because builds without CUDA do not have this library.
using CurrentStream = int32_t (*)(int32_t ordinal, void** stream);
constexpr char kLibrary[] = "libtorch_cuda.so";
constexpr char kSymbol[] = "aoti_torch_get_current_cuda_stream";

std::atomic<CurrentStream> found{nullptr};

// Returns nullptr for a torch without CUDA, which launches no kernels.
CurrentStream find() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  const auto function = reinterpret_cast<CurrentStream>(dlsym(library, kSymbol));
  if (function == nullptr) {
    throw CoreError{UM_UNSUPPORTED, std::string("the stream of CUDA ops is not known: ") + kLibrary + " has no " +
                                        kSymbol + "; expected torch 2.9 or later"};
  }
  found = function;
  return function;
}

}  // namespace

void* current_cuda_stream(int32_t ordinal) {
  CurrentStream ask = found.load(std::memory_order_acquire);
  if (ask == nullptr) ask = find();
  void* stream = nullptr;
  if (ask != nullptr && ask(ordinal, &stream) != 0) {
    throw CoreError{UM_DRIVER_ERROR,
                    "torch does not tell the current stream of CUDA device " + std::to_string(ordinal)};
  }
  return stream;
}

}  // namespace um::hooks
