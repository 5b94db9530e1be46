#include "devices/simulated/device.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>

#include "base/clock.h"
#include "driver/device_hooks.h"
#include "driver/errors.h"

namespace um::simulator {
namespace {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the driver's types

std::mutex opening;
std::atomic<Space*> spaces[kMostDevices];
thread_local int current_ordinal = -1;

Space* space_at(int ordinal) {
  return ordinal < 0 || ordinal >= kMostDevices ? nullptr : spaces[ordinal].load(std::memory_order_acquire);
}
Space* owner(uint64_t address) {
  return address < kFirstAddress ? nullptr : space_at(static_cast<int>((address - kFirstAddress) / kSpanBytes));
}
Space* managing(uint64_t address, uint64_t bytes) {
  Space* space = owner(address);
  return space != nullptr && space->blocks.managed(address, bytes) ? space : nullptr;
}

CUresult done_if(bool holds) { return holds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

// ---- devices and contexts -------------------------------------------------------------------------------------------

CUresult driver_get_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult get_error_name(CUresult error, const char** name) {
  *name = error_name(error);
  return done_if(*name != nullptr);
}

CUresult get_error_string(CUresult error, const char** message) {
  *message = error_message(error);
  return done_if(*message != nullptr);
}

CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return space_at(ordinal) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult device_get_name(char* name, int name_bytes, CUdevice) {
  std::snprintf(name, static_cast<size_t>(name_bytes), "the simulated device");
  return CUDA_SUCCESS;
}

CUresult device_total_mem(size_t* bytes, CUdevice device) {
  *bytes = space_at(device)->ranges.capacity_bytes();
  return CUDA_SUCCESS;
}

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value =
      attribute == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY || attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
  return CUDA_SUCCESS;
}

CUresult device_primary_ctx_retain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(space_at(device));
  return CUDA_SUCCESS;
}

CUresult device_primary_ctx_release(CUdevice) { return CUDA_SUCCESS; }

CUresult ctx_set_current(CUcontext context) {
  current_ordinal = -1;
  for (int ordinal = 0; context != nullptr && ordinal < kMostDevices; ++ordinal) {
    if (reinterpret_cast<CUcontext>(space_at(ordinal)) == context) current_ordinal = ordinal;
  }
  return context == nullptr || current_ordinal >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult ctx_get_current(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(current_space());
  return CUDA_SUCCESS;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

CUresult mem_get_info(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = current_space()->ranges.free_bytes();
  *total_bytes = current_space()->ranges.capacity_bytes();
  return CUDA_SUCCESS;
}

CUresult give_address(CUdeviceptr* out, uint64_t address) {
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult mem_alloc(CUdeviceptr* address, size_t bytes) {
  return give_address(address, current_space()->ranges.allocate_plain(bytes));
}

CUresult mem_alloc_managed(CUdeviceptr* address, size_t bytes, unsigned) {
  return give_address(address, current_space()->ranges.allocate_managed(bytes));
}

CUresult mem_free(CUdeviceptr address) {
  return done_if(owner(address) != nullptr && owner(address)->ranges.free(address));
}

Processor processor_of(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ? Processor::host : Processor::device;
}

CUresult mem_advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation where) {
  Space* space = managing(address, bytes);
  if (space == nullptr) return CUDA_ERROR_INVALID_VALUE;
  space->managed.advise(address, bytes, static_cast<Advice>(advice - CU_MEM_ADVISE_SET_READ_MOSTLY),
                        processor_of(where));
  return CUDA_SUCCESS;
}

CUresult mem_prefetch_async(CUdeviceptr address, size_t bytes, CUmemLocation where, unsigned, CUstream) {
  Space* space = managing(address, bytes);
  if (space == nullptr) return CUDA_ERROR_INVALID_VALUE;
  space->managed.prefetch(address, bytes, processor_of(where));
  return CUDA_SUCCESS;
}

CUresult memcpy_htod_async(CUdeviceptr to, const void*, size_t bytes, CUstream) {
  if (owner(to) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  owner(to)->managed.store(to, bytes);
  return CUDA_SUCCESS;
}

CUresult memcpy_dtoh_async(void*, CUdeviceptr from, size_t bytes, CUstream) {
  if (owner(from) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  owner(from)->managed.load(from, bytes);
  return CUDA_SUCCESS;
}

CUresult stream_synchronize(CUstream) { return CUDA_SUCCESS; }

// ---- hooks ----------------------------------------------------------------------------------------------------------

um_status open_device(const um_emulated_options* options, int32_t* ordinal, char* message, uint64_t message_bytes) {
  const std::lock_guard<std::mutex> guard(opening);
  for (int i = 0; i < kMostDevices; ++i) {
    if (spaces[i].load() != nullptr) continue;
    try {
      spaces[i].store(new Space(i, *options), std::memory_order_release);
    } catch (const std::bad_alloc&) {
      std::snprintf(message, message_bytes, "no host memory for the tables of a simulated device");
      return UM_OUT_OF_HOST_MEMORY;
    }
    *ordinal = i;
    return UM_OK;
  }
  std::snprintf(message, message_bytes, "%d simulations run already: let one end", kMostDevices);
  return UM_BAD_STATE;
}

void close_device(int32_t ordinal) {
  const std::lock_guard<std::mutex> guard(opening);
  delete spaces[ordinal].exchange(nullptr);
}

constexpr driver::DeviceHooks kHooks = {
    open_device,
    close_device,
    [](int32_t ordinal, uint64_t address, uint64_t bytes, bool write) {
      return space_of(ordinal).managed.touch(address, bytes, write);
    },
    [](int32_t ordinal, uint64_t address, uint64_t bytes) { return space_of(ordinal).managed.pin(address, bytes); },
    [](int32_t ordinal, uint64_t address, uint64_t bytes) { space_of(ordinal).managed.unpin(address, bytes); },
    [](int32_t ordinal, uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks) {
      space_of(ordinal).blocks.residency(address, bytes, device_blocks, host_blocks);
    },
    [](int32_t ordinal, uint64_t address, uint64_t bytes, uint32_t tag) {
      space_of(ordinal).blocks.tag(address, bytes, tag);
    },
    [](int32_t ordinal) { space_of(ordinal).blocks.reset_peaks(); },
    // Events, counted calls, failures on demand and real time are of the emulated device.
    [](int32_t, uint64_t) {},
    [](int32_t, bool) {},
    [](int32_t) { return false; },
    [](int32_t, driver::DeviceEvent*, uint64_t) { return uint64_t{0}; },
    [](int32_t) { return uint64_t{0}; },
    [](int32_t ordinal, driver::DeviceTotals* out) { *out = space_of(ordinal).totals(); },
    [](int32_t, driver::StallTimes*) {},
    [](int32_t, const char*) { return uint64_t{0}; },
    [](int32_t, const char*, uint64_t) { return false; },
    [](int32_t, const um_link*, const um_driver_costs*) {},
    [](int32_t, um_charged* out) { *out = {}; },
    [](int32_t, const um_link*, const um_driver_costs*) {},
    [](int32_t ordinal) {
      const Clock* const clock = space_of(ordinal).migrator.clock;
      return clock != nullptr ? clock->host_ns() : now_ns();
    },
    [](int32_t, int64_t) {},
    [](bool) { return false; },
    [](int32_t, uint64_t, uint64_t, bool) { return true; },
    [](driver::AccessOwner) {},
    [](int32_t, bool) {},
    [](driver::AccessDescriber) {},
    true,
    true,
    true,
};

}  // namespace

Space* current_space() { return space_at(current_ordinal); }

Space& space_of(int32_t ordinal) { return *spaces[ordinal].load(std::memory_order_acquire); }

}  // namespace um::simulator

namespace um::driver {

const Driver* simulated() {
  using namespace um::simulator;  // NOLINT(google-build-using-namespace)
  static const Driver driver = [] {
    Driver made{"simulated", kMissingTable, {}, &kHooks};
    made.call.driver_get_version = driver_get_version;
    made.call.get_error_name = get_error_name;
    made.call.get_error_string = get_error_string;
    made.call.device_get = device_get;
    made.call.device_get_name = device_get_name;
    made.call.device_total_mem = device_total_mem;
    made.call.device_get_attribute = device_get_attribute;
    made.call.device_primary_ctx_retain = device_primary_ctx_retain;
    made.call.device_primary_ctx_release = device_primary_ctx_release;
    made.call.ctx_set_current = ctx_set_current;
    made.call.ctx_get_current = ctx_get_current;
    made.call.mem_get_info = mem_get_info;
    made.call.mem_alloc = mem_alloc;
    made.call.mem_alloc_managed = mem_alloc_managed;
    made.call.mem_free = mem_free;
    made.call.mem_advise = mem_advise;
    made.call.mem_prefetch_async = mem_prefetch_async;
    made.call.memcpy_htod_async = memcpy_htod_async;
    made.call.memcpy_dtoh_async = memcpy_dtoh_async;
    made.call.stream_synchronize = stream_synchronize;
    return made;
  }();
  return &driver;
}

}  // namespace um::driver
