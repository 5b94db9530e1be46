// The provider over NVIDIA's driver. Nothing links it; what is missing becomes a reason in words.
#include "driver/libcuda.h"

#include <dlfcn.h>

#include <atomic>
#include <exception>
#include <type_traits>

#include "base/clock.h"
#include "driver/errors.h"

namespace um::driver {
namespace {

std::string cuda_version(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

struct Count {
  std::atomic<uint64_t> calls{0};
  std::atomic<int64_t> ns{0};
};
Count counts[kFunctionCount];
Table uncounted = kMissingTable;  // the driver's own functions

template <Function function, auto slot>
struct Counted;
template <Function function, class... Parameters, CUresult (*Table::*slot)(Parameters...)>
struct Counted<function, slot> {
  static CUresult call(Parameters... parameters) {
    const int64_t started = now_ns();
    const CUresult result = (uncounted.*slot)(parameters...);
    Count& count = counts[static_cast<size_t>(function)];
    count.calls.fetch_add(1, std::memory_order_relaxed);
    count.ns.fetch_add(now_ns() - started, std::memory_order_relaxed);
    return result;
  }
};

template <Function function, auto slot>
void fill(GetProcAddress get_proc_address, int driver_version, Libcuda* libcuda) {
  const size_t index = static_cast<size_t>(function);
  const FunctionInfo& info = kFunctions[index];
  void* address = nullptr;
  std::string& reason = libcuda->reasons[index];
  // Never ask for a form that is newer than the driver: cuda.h promises an error, but an older form under the same
  // name would be called with the wrong arguments.
  if (info.version > driver_version) {
    reason = info.symbol + (" needs " + cuda_version(info.version)) + "; this driver supports " +
             cuda_version(driver_version);
  } else if (get_proc_address(info.symbol, &address, info.version, kLegacyStream, nullptr) != CUDA_SUCCESS ||
             address == nullptr) {
    reason = info.symbol + (" is not in this driver, which supports " + cuda_version(driver_version));
  } else {
    uncounted.*slot = reinterpret_cast<std::remove_reference_t<decltype(uncounted.*slot)>>(address);
    libcuda->driver.call.*slot = Counted<function, slot>::call;
    return;
  }
  libcuda->driver.reason[index] = reason.c_str();
}

// Gives the version that the driver supports; 0 when it does not tell.
int fill_table(GetProcAddress get_proc_address, Libcuda* libcuda) {
  Table& call = libcuda->driver.call = kMissingTable;
  int version = 12000;  // at least, as it has kGetProcAddressSymbol
  fill<Function::driver_get_version, &Table::driver_get_version>(get_proc_address, version, libcuda);
  if (call.driver_get_version(&version) != CUDA_SUCCESS) return 0;
#define UM_DRIVER_FILL(name, symbol, introduced, ...) \
  fill<Function::name, &Table::name>(get_proc_address, version, libcuda);
  UM_DRIVER_FUNCTIONS(UM_DRIVER_FILL)
#undef UM_DRIVER_FILL
  return version;
}

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
  const int version = fill_table(get_proc_address, libcuda.get());
  if (version < kOldestVersion) {
    *reason = version == 0 ? "the NVIDIA driver does not tell its version"
                           : "the NVIDIA driver is too old: it supports " + cuda_version(version) + needed;
    return nullptr;
  }
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

std::vector<Calls> libcuda_calls() {
  std::vector<Calls> made;
  for (size_t index = 0; index < kFunctionCount; ++index) {
    const uint64_t calls = counts[index].calls.load(std::memory_order_relaxed);
    if (calls != 0) made.push_back({kFunctions[index].symbol, calls, counts[index].ns.load(std::memory_order_relaxed)});
  }
  return made;
}

}  // namespace um::driver
