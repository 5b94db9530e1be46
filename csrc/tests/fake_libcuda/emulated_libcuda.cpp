// A driver library named libcuda.so.1 behind which emulated devices work: real bytes, real page faults, and for the
// core above the seam nothing but a CUDA driver. It finds functions by cuGetProcAddress's rule, knows no attribute that
// is newer than it is, and is as strict about the legacy stream as cuda.h says.
#include "emulated_libcuda.h"

#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "devices/emulated/call.h"
#include "driver/device_hooks.h"
#include "driver/driver.h"
#include "environment.h"
#include "latest.h"
#include "torch_functions.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace um::driver {
namespace {

struct Failure {
  std::string symbol;  // empty: any
  unsigned code = 0;
  uint64_t first = 0, last = 0, calls = 0;
};

struct Settings {
  int version = 13000;
  std::string lacks;
  std::map<int, int> attributes;
  Failure failure;
  bool legacy_is_asynchronous = false;
  bool host_memory_crashes = false;
};

std::mutex lock;
Settings settings;
int device_count = 1;
um_emulated_options options{uint64_t{128} << 20, uint64_t{512} << 20, UM_COUNTING_RAW, 0, 5};
bool hollow = false;
// Of hollow devices: about what PCIe 3.0 with 16 lanes gives.
constexpr um_link kLink{{10'000, 10'000}, {16e9, 16e9}, {13e9, 13e9}, {1, 1}};
constexpr um_driver_costs kNoCosts{};
bool opened = false;
std::map<CUcontext, CUstream> legacy_streams;

CUresult failure_of(const char* symbol) {
  const std::lock_guard<std::mutex> guard(lock);
  Failure& failure = settings.failure;
  if (failure.code == 0 || (!failure.symbol.empty() && failure.symbol != symbol)) return CUDA_SUCCESS;
  ++failure.calls;
  return failure.calls >= failure.first && failure.calls <= failure.last ? static_cast<CUresult>(failure.code)
                                                                         : CUDA_SUCCESS;
}

bool is_legacy(CUstream stream) { return stream == nullptr || stream == legacy_stream(); }

// The legacy stream where it is one with a thread of its own: one for each context.
CUstream placed(CUstream stream) {
  if (!is_legacy(stream)) return latest().placed(stream);
  const std::lock_guard<std::mutex> guard(lock);
  if (!settings.legacy_is_asynchronous) return stream;
  CUcontext context = nullptr;
  static_cast<void>(emulated()->call.ctx_get_current(&context));
  CUstream& made = legacy_streams[context];
  if (made == nullptr) static_cast<void>(latest().stream_create(&made, CU_STREAM_NON_BLOCKING));
  return made;
}

template <class Value>
Value placed(Value value) {
  return value;
}

// ---- functions that are not the emulated device's as they stand ------------------------------------------------

CUresult init(unsigned) {
  [[maybe_unused]] static const bool once = (set_by_environment(), true);
  const std::lock_guard<std::mutex> guard(lock);
  for (int i = 0; i < device_count && !opened; ++i) {
    int32_t ordinal = -1;
    char message[256] = "";
    const um_status status = emulated()->hooks->open(&options, &ordinal, message, sizeof(message));
    if (status != UM_OK || ordinal != i) return CUDA_ERROR_OUT_OF_MEMORY;
    um::emulated::device_at(ordinal)->space.blocks.hollow = hollow;
    if (hollow) emulated()->hooks->set_link(ordinal, &kLink, &kNoCosts);
  }
  opened = true;
  return CUDA_SUCCESS;
}

CUresult driver_get_version(int* version) {
  *version = settings.version;
  return CUDA_SUCCESS;
}

CUresult device_get_count(int* count) {
  *count = device_count;
  return CUDA_SUCCESS;
}

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const std::lock_guard<std::mutex> guard(lock);
  const bool known =
      attribute != CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED || settings.version >= 12090;
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  const auto set = settings.attributes.find(attribute);
  if (set == settings.attributes.end()) return emulated()->call.device_get_attribute(value, attribute, device);
  *value = set->second;
  return CUDA_SUCCESS;
}

CUresult mem_discard_batch_async(CUdeviceptr* addresses, size_t* bytes, size_t count, unsigned long long flags,
                                 CUstream stream) {
  if (is_legacy(stream)) return CUDA_ERROR_INVALID_VALUE;
  return emulated()->call.mem_discard_batch_async(addresses, bytes, count, flags, stream);
}

CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                    unsigned long long flags) {
  if (settings.host_memory_crashes && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) std::raise(SIGSEGV);
  constexpr unsigned kFileDescriptor = 1;   // cuda.h's CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
  CUmemAllocationProp asked = *properties;  // torch asks for memory that may be shared, whether or not it shares any
  if (asked.requestedHandleTypes == kFileDescriptor) asked.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  return emulated()->call.mem_create(handle, bytes, &asked, flags);
}

Table substituted() {
  Table call = emulated()->call;
  call.init = init;
  call.driver_get_version = driver_get_version;
  call.device_get_count = device_get_count;
  call.device_get_attribute = device_get_attribute;
  call.mem_create = mem_create;
  call.mem_discard_batch_async = mem_discard_batch_async;
  call.device_primary_ctx_retain = primary_context_retained;
  call.device_primary_ctx_release = primary_context_released;
  call.mem_advise = range_advised;
  call.mem_prefetch_async = range_prefetched;
  call.mem_prefetch_batch_async = ranges_prefetched;
  call.mem_free = memory_freed;
  latest().stand_before(call);
  return call;
}

const Table& behind() {
  static const Table table = substituted();
  return table;
}

// ---- what the library gives out --------------------------------------------------------------------------------

template <Function function, auto slot>
struct Shim;
template <Function function, class... Parameters, CUresult (*Table::*slot)(Parameters...)>
struct Shim<function, slot> {
  static CUresult call(Parameters... parameters) {
    const CUresult failure = failure_of(kFunctions[static_cast<size_t>(function)].symbol);
    if (failure != CUDA_SUCCESS) return failure;
    return (behind().*slot)(placed(parameters)...);
  }
};

// A function that this driver has and whose feature it lacks: sharing memory with another process, green contexts,
// multicast. torch looks for all of them before the first expandable segment, and calls none without need.
CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

// A form of a symbol that nobody should get.
CUresult other_form() { return CUDA_ERROR_ILLEGAL_STATE; }

struct Form {
  const char* symbol;
  int version;
  void* function;  // nullptr: not even the emulated device has it
};

#define GIVEN(name, symbol, version, ...)                             \
  {#symbol, version,                                                  \
   emulated()->reason[static_cast<size_t>(Function::name)] != nullptr \
       ? nullptr                                                      \
       : reinterpret_cast<void*>(static_cast<decltype(Table::name)>(Shim<Function::name, &Table::name>::call))},
#define OTHER(symbol, version) {#symbol, version, reinterpret_cast<void*>(other_form)}
#define UNSUPPORTED(symbol) {#symbol, 10000, reinterpret_cast<void*>(unsupported)}
#define BEYOND_TABLE(symbol, version) {#symbol, version, reinterpret_cast<void*>(symbol)}

void* newest(const char* symbol, int version) {
  static const Form forms[] = {UM_DRIVER_FUNCTIONS(GIVEN) OTHER(cuMemAdvise, 8000),
                               OTHER(cuMemPrefetchAsync, 8000),
                               OTHER(cuCtxSynchronize, 13000),
                               OTHER(cuEventElapsedTime, 12080),
                               OTHER(cuMemAlloc, 2000),
                               UNSUPPORTED(cuMemExportToShareableHandle),
                               UNSUPPORTED(cuMemImportFromShareableHandle),
                               UNSUPPORTED(cuMemGetAllocationPropertiesFromHandle),
                               UNSUPPORTED(cuMemRetainAllocationHandle),
                               UNSUPPORTED(cuMemsetD32Async),
                               UNSUPPORTED(cuStreamWriteValue32),
                               UNSUPPORTED(cuMulticastAddDevice),
                               UNSUPPORTED(cuMulticastBindMem),
                               UNSUPPORTED(cuMulticastCreate),
                               UNSUPPORTED(cuMulticastUnbind),
                               BEYOND_TABLE(cuDevicePrimaryCtxGetState, 7000),
                               BEYOND_TABLE(cuPointerGetAttribute, 4000),
                               BEYOND_TABLE(cuMemRangeGetAttribute, 8000),
                               BEYOND_TABLE(cuLaunchHostFunc, 10000),
                               BEYOND_TABLE(cuMemDiscardAndPrefetchBatchAsync, 13000)};
  const Form* found = nullptr;
  for (const Form& form : forms) {
    if (std::strcmp(symbol, form.symbol) != 0 || form.version > version) continue;
    if (found == nullptr || form.version > found->version) found = &form;
  }
  return found != nullptr ? found->function : nullptr;
}

}  // namespace
}  // namespace um::driver

using namespace um::driver;  // NOLINT(google-build-using-namespace): this library is the driver

EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, unsigned*) {
  *function = nullptr;
  if (version > settings.version) return CUDA_ERROR_INVALID_VALUE;
  if (settings.lacks == symbol) return CUDA_SUCCESS;
  constexpr uint64_t kPerThread = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; by default it is the legacy one
  *function = flags < kPerThread ? newest(symbol, version) : reinterpret_cast<void*>(other_form);
  return CUDA_SUCCESS;
}

EXPORT void emulated_libcuda_version(int version) { settings.version = version; }
EXPORT void emulated_libcuda_lacks(const char* symbol) { settings.lacks = symbol != nullptr ? symbol : ""; }

EXPORT void emulated_libcuda_devices(int count, uint64_t capacity_bytes, uint32_t delay_us) {
  device_count = count;
  options.capacity_bytes = capacity_bytes;
  options.host_bytes = 4 * capacity_bytes;
  options.delay_max_us = delay_us;
}

EXPORT void emulated_libcuda_seed(uint64_t seed) { options.delay_seed = seed; }

EXPORT void emulated_libcuda_hollow(int on) { hollow = on != 0; }

EXPORT void emulated_libcuda_attribute(int attribute, int value) {
  const std::lock_guard<std::mutex> guard(lock);
  settings.attributes[attribute] = value;
}

EXPORT void emulated_libcuda_fails(const char* symbol, unsigned code, uint64_t first, uint64_t last) {
  const std::lock_guard<std::mutex> guard(lock);
  settings.failure = {symbol != nullptr ? symbol : "", code, first, last, 0};
}

EXPORT void emulated_libcuda_host_memory_crashes(int on) {
  const std::lock_guard<std::mutex> guard(lock);
  settings.host_memory_crashes = on != 0;
}

EXPORT void emulated_libcuda_legacy_is_asynchronous(int on) {
  const std::lock_guard<std::mutex> guard(lock);
  settings.legacy_is_asynchronous = on != 0;
}

EXPORT unsigned emulated_libcuda_launch(void* stream, void (*kernel)(void*), void* argument) {
  using namespace um::emulated;  // NOLINT(google-build-using-namespace)
  Device* device = device_at(current_ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  um::emulated::Stream* target = stream_of(placed(static_cast<CUstream>(stream)));
  latest().submit(device, target, Latest::kernels);
  return submitted(device->submit(target, [kernel, argument] { kernel(argument); }));
}

EXPORT void emulated_libcuda_latest(unsigned kinds) { latest().set(kinds); }

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  return static_cast<CUresult>(emulated_libcuda_launch(stream, function, argument));
}

EXPORT void emulated_libcuda_kernel_failed(int device) {
  if (um::emulated::Device* const lost = um::emulated::device_at(device)) lost->lost = true;
}

EXPORT void emulated_libcuda_reset(void) {
  latest().set(0);
  const std::lock_guard<std::mutex> guard(lock);
  settings = {};
}

EXPORT const um::driver::DeviceHooks* emulated_libcuda_hooks(void) { return emulated()->hooks; }
