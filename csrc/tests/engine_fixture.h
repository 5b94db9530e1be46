// An emulated device opened through the C ABI, with the checks and short forms that its tests share.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "moving.h"
#include "umadvise.h"

#define CHECK_OK(call) check::succeeded(__FILE__, __LINE__, #call, (call))
#define CHECK_FAILS(status, call) check::fails(__FILE__, __LINE__, #call, status, (call))

namespace check {

inline void succeeded(const char* file, int line, const char* call, um_status status) {
  if (status != UM_OK) fail(file, line, std::string(call) + " gave " + std::to_string(status) + ": " + um_last_error());
}
// Any failed call leaves a message.
inline void fails(const char* file, int line, const char* call, um_status expected, um_status status) {
  if (status != expected)
    fail(file, line, std::string(call) + " gave " + std::to_string(status) + ": " + um_last_error());
  if (um_last_error()[0] == '\0') fail(file, line, std::string(call) + " left no message");
}

}  // namespace check

namespace test {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kPage = 2 * kMiB;

inline constexpr um_placement kParameter{UM_MEMORY_MANAGED, UM_ROLE_PARAMETER, UM_ADVICE_NONE};
inline constexpr um_placement kInput{UM_MEMORY_MANAGED, UM_ROLE_INPUT, UM_ADVICE_NONE};
inline constexpr um_placement kIntermediate{UM_MEMORY_MANAGED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
inline constexpr um_placement kPlain{UM_MEMORY_DEVICE, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

inline um_placement advised(um_advice advice, um_role role = UM_ROLE_PARAMETER) {
  return {UM_MEMORY_MANAGED, static_cast<uint32_t>(role), static_cast<uint32_t>(advice)};
}

// Freed with its device; contents are one byte repeated.
class Device {
 public:
  explicit Device(uint64_t capacity_bytes, um_counting counting = UM_COUNTING_ORDERED,
                  uint64_t host_bytes = 1024 * kMiB) {
    const um_emulated_options options{capacity_bytes, host_bytes, static_cast<uint32_t>(counting), 0, 0};
    CHECK_OK(um_device_open_emulated(&options, &handle));
    um_owners_set(&Moving::owners());
  }
  explicit Device(um_device* opened) : handle(opened) { um_owners_set(&Moving::owners()); }
  ~Device() {
    for (unsigned char* each : live) um_free(each);
    um_device_close(handle);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  operator um_device*() const { return handle; }

  Moving allocate(uint64_t bytes, const um_placement& placement = kIntermediate) {
    void* address = nullptr;
    CHECK_OK(um_allocate(handle, bytes, &placement, nullptr, &address));
    return keep(address);
  }
  // Freed with the device.
  Moving keep(void* address) {
    live.push_back(moving(address));
    return live.back();
  }
  void free(void* address) {
    for (size_t i = 0; i < live.size(); ++i) {
      if (static_cast<unsigned char*>(live[i]) != address) continue;
      const Moving kept = live[i];
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      CHECK_EQ(um_free(address), 1);
      return;
    }
    CHECK(false);
  }

  // One op: reads, writes, and what runs in it.
  template <class Kernel>
  void op(const std::vector<um_access>& accesses, const Kernel& kernel, const char* name = "op",
          bool untouched = false) {
    CHECK_OK(um_op_begin(handle, um_intern(name), UM_PHASE_FORWARD, um_intern("module"), untouched, accesses.data(),
                         static_cast<uint32_t>(accesses.size())));
    std::vector<um_shown> outputs;
    for (const um_access& access : accesses) {
      const auto* const storage = static_cast<const Storage*>(access.storage);
      if (access.write != 0)
        outputs.push_back({storage != nullptr ? storage->address : access.address, access.storage});
    }
    kernel();
    um_op_end(handle, outputs.data(), static_cast<uint32_t>(outputs.size()));
  }
  void op(const std::vector<um_access>& accesses) {
    op(accesses, [] {});
  }

  um_counters counters() const {
    um_counters out{};
    CHECK_OK(um_counters_read(handle, &out));
    return out;
  }
  um_memory_stats memory() const {
    um_memory_stats out{};
    CHECK_OK(um_memory_read(handle, &out));
    return out;
  }
  std::vector<um_event> events() const {
    std::vector<um_event> out(1 << 16);
    out.resize(um_events_drain(handle, out.data(), out.size()));
    return out;
  }
  static um_allocation at(const void* address) {
    um_allocation out{};
    CHECK_OK(um_allocation_at(address, &out));
    return out;
  }

  um_device* handle = nullptr;
  std::vector<Moving> live;
};

inline um_access read(const void* address, uint64_t bytes) { return {address, bytes, 0, 0, nullptr}; }
inline um_access write(const void* address, uint64_t bytes) { return {address, bytes, 1, 0, nullptr}; }
inline um_access read(const Moving& block, uint64_t bytes) { return {block, bytes, 0, 0, block.storage()}; }
inline um_access write(const Moving& block, uint64_t bytes) { return {block, bytes, 1, 0, block.storage()}; }

inline bool holds(const unsigned char* data, unsigned char value, uint64_t bytes) {
  return data[0] == value && std::memcmp(data, data + 1, bytes - 1) == 0;
}

}  // namespace test
