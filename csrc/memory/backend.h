// One device as the driver knows it: its table, its primary context, its attributes. The only file above the seam that
// tells CUDA, the emulated device and the simulator's apart when opening; everything else asks what `hooks` say of it.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "devices/emulated/hooks.h"
#include "driver/driver.h"
#include "memory/helper.h"
#include "umadvise.h"

namespace um {

class Backend {
 public:
  // Both throw um::Error and then hold nothing.
  static Backend open_emulated(const um_emulated_options& options);
  // A device of the simulator. `options.host_bytes` limits its host's memory, 0 is none that any trace would reach.
  static Backend open_simulated(const um_emulated_options& options);
  // The same as a GPU: without hooks, so that nobody above can tell it from CUDA. Synchronous: as the emulated device.
  static Backend open_simulated_gpu(const um_emulated_options& options, bool synchronous = false);
  static Backend open_cuda(int32_t ordinal);
  // Every range must have been freed. Nothing is told of it from now on.
  void close() noexcept;

  const driver::Table& call() const { return driver->call; }
  bool has(driver::Function function) const { return driver->reason[static_cast<size_t>(function)] == nullptr; }
  bool ordered() const { return counting == UM_COUNTING_ORDERED; }
  // The host's memory, simulated or this machine's.
  uint64_t available_host_bytes() const;
  uint64_t total_host_bytes() const;
  // What may be taken of it by default: it needs some for everything else.
  uint64_t spare_host_bytes() const;
  // Null where advice and prefetch work, else why not.
  const char* why_no_migration() const;
  // What time it is: CLOCK_MONOTONIC's, unless the device's is virtual.
  int64_t now_ns() const { return hooks->now_ns(ordinal); }
  // What the device has counted; all 0 where it is not exact.
  emulated::Totals totals() const;
  um_charged charged() const;
  uint64_t calls(const char* function) const { return hooks->calls(ordinal, function); }
  // Throws um::Error unless `result` is success; `doing` says what was tried.
  void check(driver::CUresult result, const std::string& doing) const;

  const driver::Driver* driver = nullptr;
  std::shared_ptr<Helper> helper = std::make_shared<Helper>();  // a thread on CUDA
  const emulated::Hooks* hooks = &emulated::kSilent;
  int32_t ordinal = -1;
  driver::CUdevice device = -1;
  driver::CUcontext context = nullptr;
  um_counting counting = UM_COUNTING_RAW;
  std::string name;
  int32_t driver_version = 0;
  // Attributes; UM_UNKNOWN where the driver does not know them.
  int32_t managed_memory = 0, concurrent_managed = UM_UNKNOWN, pageable_access = UM_UNKNOWN;
  int32_t integrated = 0, virtual_memory = 0;
  bool discards = false;  // the driver's discard is trusted
  uint64_t total_bytes = 0;
  uint64_t free_at_opening_bytes = ~uint64_t{0};  // of the host and the device, where it was looked at (CUDA)

 private:
  static Backend open_with_hooks(const driver::Driver* driver, const emulated::Hooks* hooks,
                                 const um_emulated_options& options);
  static Backend open_simulated(const driver::Driver* driver, um_emulated_options options);
  void describe();

  uint64_t simulated_host_bytes_ = 0;  // 0: the host has what this machine has
};

// Makes the device's context current in this thread for its life, and puts the former one back: a free may come from a
// thread that has none, or another device's.
class CurrentContext {
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

// Likewise for those who cannot do without: throws um::Error when the driver refuses.
class RequiredContext : public CurrentContext {
 public:
  explicit RequiredContext(const Backend& backend) : CurrentContext(backend) {
    backend.check(result(), "making the device's context current");
  }
};

}  // namespace um
