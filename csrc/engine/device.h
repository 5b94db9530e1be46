// One open device, which makes its participants and owns them (engine/device_base.h).
//
// A um_device that open() returned is never destroyed, only emptied: handles and addresses that are used too late find
// a closed device instead of freed memory. Its participants are freed, so a process that opens a thousand sessions
// keeps less than 1 KiB of each.
#pragma once

#include <atomic>
#include <memory>

#include "base/thread_safety.h"
#include "engine/accounts.h"
#include "engine/block_owners.h"
#include "engine/budget_keeper.h"
#include "engine/conversion.h"
#include "engine/device_base.h"
#include "engine/exports.h"
#include "engine/guard.h"
#include "engine/heap_memory.h"
#include "engine/managed_memory.h"
#include "engine/matching/plan_executor.h"
#include "engine/observation.h"
#include "engine/owners.h"
#include "engine/recording.h"
#include "engine/repetition.h"
#include "engine/sampling.h"
#include "engine/step_undo.h"
#include "engine/streams.h"
#include "engine/swapping.h"
#include "engine/times.h"
#include "engine/workspaces.h"

namespace um {

// The device's objects. Each constructor takes only objects that are declared before it.
struct DeviceParts {
  explicit DeviceParts(DeviceBase& its, driver::AccessOwner its_serve, driver::AccessDescriber its_describe)
      : base(its), serve(its_serve), describe(its_describe) {}

  DeviceBase& base;
  const driver::AccessOwner serve;
  const driver::AccessDescriber describe;
  EventLog log;
  SwapEvents swaps{log};
  Tape tape;
  Times times{base.backend, swaps};
  Streams streams{base};
  Repetition repetition{base};
  StepUndo step_undo{base};
  BlockOwners block_owners{base};
  Sampling sampling{base, log, swaps, times, tape};
  Observation observation{base, log, swaps, times, tape, sampling};
  BudgetKeeper budget{base, block_owners, observation, sampling, serve};
  Accounts accounts{base, sampling, budget};
  Workspaces workspaces{base, budget};
  Swapping swapping{base, swaps, block_owners, sampling, step_undo, serve, describe};
  Exports exports{base, budget, swapping};
  ManagedMemory managed{base, block_owners, streams, sampling, budget, accounts, exports};
  DeviceMemory plain{base, block_owners, managed};
  Recording recording{base, tape, observation, swapping};
  PlanExecutor plan_executor{base, streams, budget, accounts, swapping};
  Conversion conversion{base, swaps, sampling, observation, budget, accounts, swapping};
  Guard guard{base, swaps, times, streams, step_undo, observation, budget, accounts};
};

}  // namespace um

struct um_device : um::DeviceBase {
 public:
  using Lock = um::owners::Lock;
  // A device together with its lock, which is held.
  struct [[nodiscard]] SCOPED_CAPABILITY Locked {
    Locked(um_device* its, Lock taken) ACQUIRE(um::device_lock) : device(its), lock(std::move(taken)) {}
    Locked(Locked&&) = default;
    ~Locked() RELEASE() {}
    um_device* operator->() const { return device; }
    um_device* device;
    Lock lock;
  };
  // An allocation together with its device's lock, which is held. `block` is nullptr if there is none.
  struct [[nodiscard]] SCOPED_CAPABILITY Found {
    Found() ACQUIRE(um::device_lock) {}
    Found(Found&&) = default;
    ~Found() RELEASE() {}
    um_device* device = nullptr;
    um::Block* block = nullptr;
    Lock lock;
  };

  // Throws um::Error, and then has closed the backend.
  static um_device* open(um::Backend backend);
  // Opens a device whose addresses only the caller sees. After close() it may be destroyed.
  static std::unique_ptr<um_device> open_owned(um::Backend backend, um::Owners& owners);
  // Refuses new allocations from now on; the last free empties the device. Throws um::Error if the device is closed
  // already, or if the driver does not take its memory back.
  void close();
  bool accepts_allocations() const { return accepts_.load(std::memory_order_relaxed); }
  Locked lock() ACQUIRE(um::device_lock) { return {this, Lock(mutex)}; }
  Lock try_lock() { return Lock(mutex, std::try_to_lock); }
  // Throws um::Error if the device has been emptied.
  Locked alive() ACQUIRE(um::device_lock) NO_THREAD_SAFETY_ANALYSIS;
  // Returns whether the participants still exist. Requires the lock. Without the lock, the members from `guard` on may
  // be used only while the device is alive, or while an op runs on it.
  bool has_parts() const { return parts_ != nullptr; }

  // ---- the lock is taken ----
  // `outside_ops`: the caller may write to the memory itself, or hand it to a kernel of `stream` that no op announces.
  // The memory is then on the device at once, and is not evicted before an op has used it. Device memory for an op that
  // only creates is not evicted before that either.
  enum class Use : uint8_t { by_ops, outside_ops };
  void* allocate(uint64_t bytes, const um_placement& placement, void* stream, Use use = Use::by_ops);
  // Static functions find the device by the address. free() returns false if no allocation starts there.
  static bool free(void* pointer) noexcept;
  static bool owns(const void* address) noexcept;
  static void describe(const void* address, um_allocation* out);
  static void label(const void* address, uint32_t role, uint32_t name);
  static Found find(uint64_t address, bool at_start) ACQUIRE(um::device_lock) NO_THREAD_SAFETY_ANALYSIS;
  static Found find_range(const void* address, uint64_t bytes) ACQUIRE(um::device_lock) NO_THREAD_SAFETY_ANALYSIS;
  // Notes the storage that shows an allocation of any device.
  static void show(const void* address, void* storage) noexcept;
  // Begin an op. Throw um::Error if the device has been closed. end_op() then does nothing.
  void begin_op(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, um_gather gather, void* context);
  void begin_op(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, const um_access* accesses,
                uint32_t count);
  // Returns how many chunked allocations the op made that outlive it and were never seen.
  uint32_t end_op(const um_shown* outputs, uint32_t count) noexcept;
  // Makes an access possible that no op announced (`driver::AccessOwner`).
  static bool serve_stray_access(uint64_t address, bool write) noexcept;
  // Describes the memory and the op of a fatal access in a few words (`driver::AccessDescriber`).
  static void tell_stray_access(uint64_t address, char* text, size_t bytes) noexcept;

  // ---- the lock is held ----
  uint64_t list(um_allocation* out, uint64_t capacity) REQUIRES(um::device_lock);
  void query(um_device_info* out) REQUIRES(um::device_lock);
  void read(um_swap_counters* out) REQUIRES(um::device_lock);
  // Gives unused memory back to the driver.
  void trim() REQUIRES(um::device_lock);
  // Throw um::Error if the provider cannot do this.
  void fail(const char* function, uint64_t nth) REQUIRES(um::device_lock);
  void set_link(const um_link& link, const um_driver_costs& costs) REQUIRES(um::device_lock);
  // Makes the device's time virtual from now on (um_emulated_set_clock).
  void set_clock(const um_link& link, const um_driver_costs& costs) REQUIRES(um::device_lock);
  // Measures the nanoseconds of each of `copies` copies in the requested directions, which run at the same time
  // (link_measure.cpp).
  void measure_link(uint64_t bytes, uint32_t copies, bool h2d, bool d2h, int64_t out_ns[2]) REQUIRES(um::device_lock);

 private:
  std::unique_ptr<um::DeviceParts> parts_ =
      std::make_unique<um::DeviceParts>(*this, serve_stray_access, tell_stray_access);

 public:
  um::Guard& guard = parts_->guard;
  um::Times& times GUARDED_BY(um::device_lock) = parts_->times;
  um::Streams& streams GUARDED_BY(um::device_lock) = parts_->streams;
  um::Repetition& repetition GUARDED_BY(um::device_lock) = parts_->repetition;
  um::StepUndo& step_undo GUARDED_BY(um::device_lock) = parts_->step_undo;
  um::BlockOwners& block_owners GUARDED_BY(um::device_lock) = parts_->block_owners;
  um::Sampling& sampling GUARDED_BY(um::device_lock) = parts_->sampling;
  um::Observation& observation GUARDED_BY(um::device_lock) = parts_->observation;
  um::BudgetKeeper& budget GUARDED_BY(um::device_lock) = parts_->budget;
  um::Accounts& accounts GUARDED_BY(um::device_lock) = parts_->accounts;
  um::Swapping& swapping GUARDED_BY(um::device_lock) = parts_->swapping;
  um::Exports& exports GUARDED_BY(um::device_lock) = parts_->exports;
  um::Recording& recording GUARDED_BY(um::device_lock) = parts_->recording;
  um::PlanExecutor& plan_executor GUARDED_BY(um::device_lock) = parts_->plan_executor;
  um::Conversion& conversion GUARDED_BY(um::device_lock) = parts_->conversion;

 private:
  um_device(um::Backend its_backend, um::Owners& its_owners);
  void release(um::Block* block) noexcept REQUIRES(um::device_lock);
  bool empty_out() noexcept REQUIRES(um::device_lock);
  void free_parts() noexcept;
  static void keep(um_device* device);
  um_allocation describe(const um::Block& block) REQUIRES(um::device_lock);

  std::atomic<bool> accepts_{true};
  bool emptied_ GUARDED_BY(um::device_lock) = false;
};
