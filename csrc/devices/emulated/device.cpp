#include "devices/emulated/device.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "devices/emulated/fault_handler.h"

namespace um::emulated {
namespace {
std::mutex opening;
std::atomic<Device*> devices[kMostDevices];
}  // namespace

bool CallLog::fails(driver::Function function) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto index = static_cast<size_t>(function);
  ++counts_[index];
  if (remaining_ == 0) return false;
  if (armed_symbol_ != nullptr && std::strcmp(armed_symbol_, driver::kFunctions[index].symbol) != 0) return false;
  return --remaining_ == 0;
}

uint64_t CallLog::calls(const char* symbol) {
  const std::lock_guard<std::mutex> guard(lock_);
  uint64_t sum = 0;
  for (size_t i = 0; i < driver::kFunctionCount; ++i) {
    if (symbol == nullptr || std::strcmp(symbol, driver::kFunctions[i].symbol) == 0) sum += counts_[i];
  }
  return sum;
}

bool CallLog::arm(const char* symbol, uint64_t nth) {
  const auto* found = std::find_if(
      std::begin(driver::kFunctions), std::end(driver::kFunctions),
      [&](const auto& function) { return symbol != nullptr && std::strcmp(symbol, function.symbol) == 0; });
  if (symbol != nullptr && found == std::end(driver::kFunctions)) return false;
  const std::lock_guard<std::mutex> guard(lock_);
  armed_symbol_ = symbol == nullptr ? nullptr : found->symbol;
  remaining_ = nth;
  return true;
}

bool Device::owns(Stream* stream) {
  const std::lock_guard<std::mutex> guard(streams_lock);
  return std::any_of(streams.begin(), streams.end(), [&](const auto& each) { return each.get() == stream; });
}

void Device::wait_for_streams() {
  const std::lock_guard<std::mutex> guard(streams_lock);
  for (const auto& stream : streams) stream->synchronize();
}

void Device::wait_for_blocking_streams() {
  if (left_out(Wait::emulated_blocking_streams)) return;
  const std::lock_guard<std::mutex> guard(streams_lock);
  for (const auto& stream : streams) {
    if (stream->blocking()) stream->synchronize();
  }
}

bool Device::submit(Stream* stream, std::function<void()> work) {
  if (stream == nullptr) {
    wait_for_blocking_streams();
    work();
    return true;
  }
  if (!owns(stream)) return false;
  stream->give(std::move(work));
  return true;
}

namespace {

bool limited(__rlimit_resource resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

const char* remedy() {
  if (limited(RLIMIT_AS)) return "raise the limit on address space (ulimit -v unlimited)";
  if (limited(RLIMIT_FSIZE)) return "raise the limit on the size of files (ulimit -f unlimited)";
  return "give it a smaller capacity";
}

}  // namespace

Device* device_at(int ordinal) {
  return ordinal < 0 || ordinal >= kMostDevices ? nullptr : devices[ordinal].load(std::memory_order_acquire);
}

um_status open_device(const um_emulated_options* options, int32_t* ordinal, char* message, uint64_t message_bytes) {
  const std::lock_guard<std::mutex> guard(opening);
  if (forked()) {
    std::snprintf(message, message_bytes,
                  "the process was forked from one that used an emulated device: start it afresh (spawn)");
    return UM_BAD_STATE;
  }
  try {
    reserve_range();
    install_fault_handler(false);
    for (int i = 0; i < kMostDevices; ++i) {
      if (devices[i].load() != nullptr) continue;
      devices[i].store(new Device(i, *options), std::memory_order_release);
      *ordinal = i;
      return UM_OK;
    }
  } catch (const std::bad_alloc&) {
    std::snprintf(message, message_bytes,
                  "the emulated device finds no address space or memory file for %llu MiB of its own and %llu MiB of "
                  "host memory: %s",
                  static_cast<unsigned long long>(options->capacity_bytes >> 20),
                  static_cast<unsigned long long>(options->host_bytes >> 20), remedy());
    return UM_OUT_OF_HOST_MEMORY;
  }
  std::snprintf(message, message_bytes, "%d emulated devices are open already: close one", kMostDevices);
  return UM_BAD_STATE;
}

void close_device(int32_t ordinal) {
  const std::lock_guard<std::mutex> guard(opening);
  Device* device = device_at(ordinal);
  if (device == nullptr) return;
  // No fault can be in flight: every range was freed. The handler may still look the pointer up for a stray address.
  devices[ordinal].store(nullptr, std::memory_order_release);
  delete device;
}

}  // namespace um::emulated
