// The provider over NVIDIA's driver. Nothing links it; what is missing becomes a reason in words.
#include "driver/libcuda.h"

#include <dlfcn.h>

#include <exception>

#include "driver/errors.h"

namespace um::driver {
namespace {

std::string cuda_version(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class Resolver {
 public:
  Resolver(GetProcAddress get_proc_address, Libcuda* libcuda) : get_proc_address_(get_proc_address), libcuda_(libcuda) {
    libcuda_->driver.call = kMissingTable;
  }

  // The version that the driver supports; 0 when it does not tell.
  int read_version() {
    fill(Function::driver_get_version, &libcuda_->driver.call.driver_get_version);
    int version = 0;
    if (libcuda_->driver.call.driver_get_version(&version) != CUDA_SUCCESS) return 0;
    return driver_version_ = version;
  }

  void fill_all() {
#define UM_DRIVER_FILL(name, symbol, version, ...) fill(Function::name, &libcuda_->driver.call.name);
    UM_DRIVER_FUNCTIONS(UM_DRIVER_FILL)
#undef UM_DRIVER_FILL
  }

 private:
  template <class Pointer>
  void fill(Function function, Pointer* slot) {
    const size_t index = static_cast<size_t>(function);
    const FunctionInfo& info = kFunctions[index];
    void* address = nullptr;
    // Never ask for a form that is newer than the driver: cuda.h promises an error, but an older form under the same
    // name would be called with the wrong arguments.
    if (info.version > driver_version_) {
      miss(index, " needs " + cuda_version(info.version) + "; this driver supports " + cuda_version(driver_version_));
    } else if (get_proc_address_(info.symbol, &address, info.version, kLegacyStream, nullptr) != CUDA_SUCCESS ||
               address == nullptr) {
      miss(index, " is not in this driver, which supports " + cuda_version(driver_version_));
    } else {
      *slot = reinterpret_cast<Pointer>(address);
    }
  }

  void miss(size_t index, const std::string& why) {
    libcuda_->reasons[index] = kFunctions[index].symbol + why;
    libcuda_->driver.reason[index] = libcuda_->reasons[index].c_str();
  }

  const GetProcAddress get_proc_address_;
  Libcuda* const libcuda_;
  int driver_version_ = 12000;  // at least, as it has kGetProcAddressSymbol
};

// Empty when the driver is initialised and has a device.
std::string why_unusable(const Table& call) {
  if (const CUresult result = call.init(0); result != CUDA_SUCCESS) return "cuInit failed: " + describe(call, result);
  int count = 0;
  if (const CUresult result = call.device_get_count(&count); result != CUDA_SUCCESS)
    return "cuDeviceGetCount failed: " + describe(call, result);
  if (count == 0) return "the driver sees no device (is CUDA_VISIBLE_DEVICES empty?)";
  return {};
}

}  // namespace

std::unique_ptr<const Libcuda> load_libcuda(const char* library, std::string* reason) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc and musl
    *reason = std::string("no NVIDIA driver: ") + (error != nullptr ? error : library);
    return nullptr;
  }
  const std::string needed = "; " + cuda_version(kOldestVersion) + " or newer is needed";
  const auto get_proc_address = reinterpret_cast<GetProcAddress>(dlsym(handle, kGetProcAddressSymbol));
  if (get_proc_address == nullptr) {
    *reason = std::string("the NVIDIA driver is too old: ") + library + " has no " + kGetProcAddressSymbol +
              " (CUDA 12.0)" + needed;
    return nullptr;
  }
  auto libcuda = std::make_unique<Libcuda>();
  libcuda->driver.provider = "cuda";
  Resolver resolver(get_proc_address, libcuda.get());
  const int version = resolver.read_version();
  if (version < kOldestVersion) {
    *reason = version == 0 ? "the NVIDIA driver does not tell its version"
                           : "the NVIDIA driver is too old: it supports " + cuda_version(version) + needed;
    return nullptr;
  }
  resolver.fill_all();
  *reason = why_unusable(libcuda->driver.call);
  if (!reason->empty()) return nullptr;
  return libcuda;
}

const Driver* libcuda(const char** reason) {
  struct Attempt {
    std::unique_ptr<const Libcuda> libcuda;
    std::string reason;
  };
  try {
    // Never destroyed: frees may still come in while the process shuts down.
    static const Attempt* const attempt = [] {
      auto made = std::make_unique<Attempt>();
      made->libcuda = load_libcuda("libcuda.so.1", &made->reason);
      return made.release();
    }();
    if (attempt->libcuda != nullptr) return &attempt->libcuda->driver;
    *reason = attempt->reason.c_str();
  } catch (const std::exception&) {  // std::bad_alloc; the next call tries again
    *reason = "out of host memory while loading the NVIDIA driver";
  }
  return nullptr;
}

}  // namespace um::driver
