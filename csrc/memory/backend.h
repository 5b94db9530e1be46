// One device as the driver sees it: the driver table, the primary context and the attributes. No other file above the
// driver tells CUDA, the emulated device and the simulated device apart; the rest of the core asks `hooks`.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "driver/device_hooks.h"
#include "driver/driver.h"
#include "memory/helper.h"
#include "umadvise.h"
#include "umadvise_waits.h"

namespace um {

class Backend {
 public:
  // All four throw um::Error, and then hold nothing.
  static Backend open_emulated(const um_emulated_options& options);
  // Opens a simulated device. `options.host_bytes` limits the host memory; 0: more than any trace needs.
  static Backend open_simulated(const um_emulated_options& options);
  // Opens the simulated device as a GPU, without hooks, so that the engine treats it like CUDA. `synchronous`: it
  // computes in the calling thread, as the emulated device does.
  static Backend open_simulated_gpu(const um_emulated_options& options, bool synchronous = false);
  static Backend open_cuda(int32_t ordinal);
  // Requires that all ranges have been freed. From now on the device reports nothing.
  void close() noexcept;

  const driver::Table& call() const { return driver->call; }
  bool has(driver::Function function) const { return driver->reason[static_cast<size_t>(function)] == nullptr; }
  bool ordered() const { return counting == UM_COUNTING_ORDERED; }
  // The memory of the simulated host, or of this machine.
  uint64_t available_host_bytes() const;
  uint64_t total_host_bytes() const;
  // Returns how much host memory is taken by default. The rest is for other uses.
  uint64_t default_host_bytes() const;
  // Returns nullptr if the driver takes advice and prefetches, else the reason why not.
  const char* why_no_migration() const;
  // Returns the time of CLOCK_MONOTONIC, or the virtual time of the device.
  int64_t now_ns() const { return hooks->now_ns(ordinal); }
  // Returns the device's own counters; all 0 on a device that counts nothing exactly.
  driver::DeviceTotals totals() const;
  um_charged charged() const;
  uint64_t calls(const char* function) const { return hooks->calls(ordinal, function); }
  // Throws um::Error unless `result` is success. `doing` names the call in the message.
  void check(driver::CUresult result, const std::string& doing) const;
  // Waits for a GPU's kernels: the legacy stream, in which copies run, is not ordered after the streams of kernels.
  // Throws um::Error.
  void finish_kernels(Wait name, const std::string& doing) const;

  const driver::Driver* driver = nullptr;
  std::shared_ptr<Helper> helper = std::make_shared<Helper>();  // on CUDA it has a thread
  const driver::DeviceHooks* hooks = &driver::kSilentHooks;
  int32_t ordinal = -1;
  driver::CUdevice device = -1;
  driver::CUcontext context = nullptr;
  um_counting counting = UM_COUNTING_RAW;
  std::string name;
  int32_t driver_version = 0;
  // Attributes; UM_UNKNOWN: the driver does not know them.
  int32_t managed_memory = 0, concurrent_managed = UM_UNKNOWN, pageable_access = UM_UNKNOWN;
  int32_t integrated = 0, virtual_memory = 0;
  bool discards = false;  // whether the driver's discard may be used
  uint64_t total_bytes = 0;
  uint64_t free_at_opening_bytes = ~uint64_t{0};  // host plus device, measured when a CUDA device is opened

 private:
  static Backend open_with_hooks(const driver::Driver* driver, const driver::DeviceHooks* hooks,
                                 const um_emulated_options& options);
  static Backend open_simulated(const driver::Driver* driver, um_emulated_options options);
  void describe();

  uint64_t simulated_host_bytes_ = 0;  // 0: this machine's memory
};

// Makes the device's context current in this thread while it lives, and then restores the former one. A thread that
// frees memory may have no context, or that of another device.
class [[nodiscard]] CurrentContext {
 public:
  explicit CurrentContext(const Backend& backend) noexcept;
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  driver::CUresult result() const { return result_; }

 private:
  const Backend& backend_;
  driver::CUcontext former_ = nullptr;
  bool changed_ = false;
  driver::CUresult result_;
};

// A CurrentContext that is required: its constructor throws um::Error if the driver refuses.
class [[nodiscard]] RequiredContext : public CurrentContext {
 public:
  explicit RequiredContext(const Backend& backend) : CurrentContext(backend) {
    backend.check(result(), "making the device's context current");
  }
};

}  // namespace um
