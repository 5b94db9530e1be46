#include "memory/backend.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "devices/simulated/device.h"
#include "devices/simulated/gpu.h"
#include "driver/errors.h"
#include "memory/host_memory.h"
#include "memory/process.h"
#include "um/model.h"

namespace um {
namespace {

using driver::CUDA_ERROR_INVALID_VALUE;
using driver::CUDA_ERROR_NOT_SUPPORTED;
using driver::CUDA_ERROR_OUT_OF_MEMORY;
using driver::CUDA_SUCCESS;
using driver::CUresult;

constexpr uint64_t kLeastCapacityBytes = 2 * kBlockBytes;
constexpr uint32_t kMostDelayUs = 1000000;
// No machine has more, and with this much a budget's table of pages still takes only a few megabytes.
constexpr uint64_t kSimulatedHostBytes = uint64_t{1} << 40;

// Reports which wait is left out for a test, so that the setting is noticed if it was made by accident.
void report_left_out_wait() {
  if (left_out_wait == Wait::nothing) return;
  const std::string name = kLeaveOutWait;
  if (left_out_wait == Wait::unknown) {
    throw Error(UM_INVALID_ARGUMENT,
                name + " names no wait of umadvise_waits.h: it is for tests of umadvise; unset it");
  }
  std::fprintf(stderr, "umadvise: %s is set, so results are wrong: it is for tests of umadvise; unset it\n",
               name.c_str());
}

// Returns the options as the device takes them. Throws um::Error if one is wrong.
um_emulated_options checked(um_emulated_options options) {
  options.capacity_bytes = options.capacity_bytes / kBlockBytes * kBlockBytes;
  if (options.capacity_bytes < kLeastCapacityBytes) {
    throw Error(UM_INVALID_ARGUMENT, "the emulated device's capacity is below " + in_words(kLeastCapacityBytes) +
                                         ": give it at least two blocks of 2 MiB");
  }
  if (options.counting != UM_COUNTING_ORDERED && options.counting != UM_COUNTING_RAW) {
    throw Error(UM_INVALID_ARGUMENT,
                "counting is " + std::to_string(options.counting) + ": expected ordered (0) or raw (1)");
  }
  if (options.delay_max_us > kMostDelayUs) {
    throw Error(UM_INVALID_ARGUMENT, "delays of " + std::to_string(options.delay_max_us) + " us: at most one second");
  }
  const uint64_t available = available_host_bytes();
  if (options.capacity_bytes > available) {
    throw Error(UM_OUT_OF_HOST_MEMORY, "the emulated device keeps its memory in RAM: a capacity of " +
                                           in_words(options.capacity_bytes) + " is more than the " +
                                           in_words(available) + " available; choose a smaller capacity");
  }
  const uint64_t left = available - options.capacity_bytes;
  if (options.host_bytes > left) {
    throw Error(UM_OUT_OF_HOST_MEMORY, "host_bytes of " + in_words(options.host_bytes) + " beside a capacity of " +
                                           in_words(options.capacity_bytes) + " is more than the " +
                                           in_words(available) +
                                           " of RAM available; choose less, or 0 for what there is");
  }
  if (options.host_bytes == 0) options.host_bytes = left;
  options.host_bytes = options.host_bytes / kBlockBytes * kBlockBytes;
  return options;
}

}  // namespace

Backend Backend::open_emulated(const um_emulated_options& wanted) {
  report_left_out_wait();
  const um_emulated_options options = checked(wanted);
  process::watch();
  Backend backend = open_with_hooks(driver::emulated(), driver::emulated()->hooks, options);
  if (wanted.host_bytes != 0) backend.simulated_host_bytes_ = options.host_bytes;
  return backend;
}

Backend Backend::open_simulated(const um_emulated_options& options) {
  return open_simulated(driver::simulated(), options);
}

Backend Backend::open_simulated_gpu(const um_emulated_options& options, bool synchronous) {
  return open_simulated(synchronous ? driver::simulated_synchronous() : driver::simulated_gpu(), options);
}

Backend Backend::open_simulated(const driver::Driver* driver, um_emulated_options options) {
  if (options.capacity_bytes < kLeastCapacityBytes) {
    throw Error(UM_INVALID_ARGUMENT, "the simulated device's capacity is below " + in_words(kLeastCapacityBytes) +
                                         ": give it at least two blocks of 2 MiB");
  }
  if (options.capacity_bytes > kSimulatedHostBytes || options.host_bytes > kSimulatedHostBytes) {
    throw Error(UM_INVALID_ARGUMENT, "no machine has more than " + in_words(kSimulatedHostBytes) +
                                         ": choose a smaller capacity and host memory");
  }
  if (options.host_bytes == 0) options.host_bytes = kSimulatedHostBytes;
  Backend backend = open_with_hooks(driver, driver::simulated()->hooks, options);
  backend.simulated_host_bytes_ = options.host_bytes;
  return backend;
}

// `opener` opens the device, also if the driver shows no hooks.
Backend Backend::open_with_hooks(const driver::Driver* provider, const driver::DeviceHooks* opener,
                                 const um_emulated_options& options) {
  Backend backend;
  backend.driver = provider;
  if (provider->hooks != nullptr) {
    backend.hooks = provider->hooks;
    backend.counting = static_cast<um_counting>(options.counting);
  }
  backend.discards = true;
  char message[512] = "";
  const um_status status = opener->open(&options, &backend.ordinal, message, sizeof(message));
  if (status != UM_OK) throw Error(status, message);
  const OnError undo([&] { opener->close(backend.ordinal); });
  backend.describe();
  return backend;
}

Backend Backend::open_cuda(int32_t ordinal) {
  report_left_out_wait();
  const char* reason = nullptr;
  const driver::Driver* libcuda = driver::libcuda(&reason);
  if (libcuda == nullptr) throw Error(UM_UNSUPPORTED, std::string("no CUDA device can be used: ") + reason);
  process::watch();
  Backend backend;
  backend.driver = libcuda;
  backend.ordinal = ordinal;
  int count = 0;
  backend.check(libcuda->call.device_get_count(&count), "counting the CUDA devices");
  if (ordinal < 0 || ordinal >= count) {
    throw Error(UM_INVALID_ARGUMENT, "there is no CUDA device " + std::to_string(ordinal) + ": the driver sees " +
                                         std::to_string(count) + ", numbered from 0");
  }
  backend.describe();
  const OnError undo([&] { backend.close(); });
  backend.helper = std::make_shared<Helper>([libcuda, context = backend.context] {
    static_cast<void>(libcuda->call.ctx_set_current(
        context));  // if this fails, the helper's calls fail too, and their callers expect that
  });
  const RequiredContext current(backend);
  size_t free_bytes = 0, all_bytes = 0;
  backend.check(backend.call().mem_get_info(&free_bytes, &all_bytes), "asking for free device memory");
  const uint64_t host_bytes = backend.available_host_bytes();
  backend.free_at_opening_bytes =
      backend.integrated == 1 ? std::max<uint64_t>(host_bytes, free_bytes) : host_bytes + free_bytes;
  return backend;
}

// Retains the context last, so that nothing is held if an earlier call fails.
void Backend::describe() {
  check(call().device_get(&device, ordinal), "finding the device");
  char text[sizeof(um_device_info::name)] = "";
  check(call().device_get_name(text, sizeof(text), device), "asking for the device's name");
  name = text;
  size_t bytes = 0;
  check(call().device_total_mem(&bytes, device), "asking for the device's memory");
  total_bytes = bytes;
  check(call().driver_get_version(&driver_version), "asking for the driver's version");
  const auto attribute = [&](driver::CUdevice_attribute which, int32_t* value) {
    const CUresult result = call().device_get_attribute(value, which, device);
    if (result == CUDA_ERROR_INVALID_VALUE) {  // the attribute is newer than this driver
      *value = UM_UNKNOWN;
    } else {
      check(result, "asking for a device attribute");
    }
  };
  attribute(driver::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, &managed_memory);
  attribute(driver::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, &concurrent_managed);
  attribute(driver::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, &pageable_access);
  attribute(driver::CU_DEVICE_ATTRIBUTE_INTEGRATED, &integrated);
  attribute(driver::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &virtual_memory);
  check(call().device_primary_ctx_retain(&context, device), "retaining the device's primary context");
}

void Backend::close() noexcept {
  helper->end();
  static_cast<void>(call().device_primary_ctx_release(device));  // a failure could not be handled
  std::exchange(hooks, &driver::kSilentHooks)->close(ordinal);
}

uint64_t Backend::available_host_bytes() const {
  return simulated_host_bytes_ != 0 ? simulated_host_bytes_ : um::available_host_bytes();
}

uint64_t Backend::default_host_bytes() const {
  return simulated_host_bytes_ != 0 ? simulated_host_bytes_ : um::default_host_bytes(um::available_host_bytes());
}

uint64_t Backend::total_host_bytes() const {
  return simulated_host_bytes_ != 0 ? simulated_host_bytes_ : um::total_host_bytes();
}

const char* Backend::why_no_migration() const {
  return concurrent_managed == 1
             ? nullptr
             : "the device has no concurrent managed access (attribute 89): managed memory moves as a "
               "whole at kernel launches, and the driver takes neither advice nor prefetches";
}

driver::DeviceTotals Backend::totals() const {
  driver::DeviceTotals totals{};
  hooks->totals(ordinal, &totals);
  return totals;
}

um_charged Backend::charged() const {
  um_charged out{};
  hooks->charged(ordinal, &out);
  return out;
}

void Backend::check(CUresult result, const std::string& doing) const {
  if (result == CUDA_SUCCESS) return;
  const um_status status = result == CUDA_ERROR_OUT_OF_MEMORY   ? UM_OUT_OF_DEVICE_MEMORY
                           : result == CUDA_ERROR_NOT_SUPPORTED ? UM_UNSUPPORTED
                                                                : UM_DRIVER_ERROR;
  throw Error(status, doing + " failed: " + driver::describe(call(), result));
}

void Backend::finish_kernels(Wait name, const std::string& doing) const {
  if (!hooks->in_host && !left_out(name)) check(call().ctx_synchronize(), doing);
}

CurrentContext::CurrentContext(const Backend& backend) noexcept : backend_(backend) {
  result_ = backend.call().ctx_get_current(&former_);
  if (result_ != CUDA_SUCCESS || former_ == backend.context) return;
  result_ = backend.call().ctx_set_current(backend.context);
  changed_ = result_ == CUDA_SUCCESS;
}

CurrentContext::~CurrentContext() {
  if (changed_) static_cast<void>(backend_.call().ctx_set_current(former_));
}

}  // namespace um
