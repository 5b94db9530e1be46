// One open device: its allocations, and whoever takes part in what happens to them.
//
// A um_device that users know of is never destroyed, only emptied: handles and addresses that are used too late find a
// closed device instead of freed memory. What takes part in it is freed, so that a process which opens a thousand
// sessions keeps less than a KiB of each. One lock guards everything here. Under it the driver and the device's hooks
// may be called, but managed memory is never touched (docs/architecture.md, locks).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "engine/accounts.h"
#include "engine/budget_keeper.h"
#include "engine/conversion.h"
#include "engine/exports.h"
#include "engine/guard.h"
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
#include "memory/allocations.h"
#include "memory/backend.h"

struct um_device {
  struct Parts;

 public:
  using Lock = um::owners::Lock;
  // A device and its lock, held.
  struct Locked {
    um_device* operator->() const { return device; }
    um_device* device;
    Lock lock;
  };
  // An allocation and the lock of its device, held; `block` is nullptr when there is none.
  struct Found {
    um_device* device = nullptr;
    um::Block* block = nullptr;
    Lock lock;
  };

  // Throws um::Error and then gives the backend back.
  static um_device* open(um::Backend backend);
  // For a caller whose addresses nobody else ever sees: close it, then it may be destroyed.
  static std::unique_ptr<um_device> open_owned(um::Backend backend, um::Owners& owners);
  // No new allocations; the last free empties the device. Throws um::Error when it is closed already, or when the
  // driver does not take its memory back.
  void close();
  bool accepts_allocations() const { return accepts_.load(std::memory_order_relaxed); }
  Locked lock() { return {this, Lock(mutex_)}; }
  Lock try_lock() { return Lock(mutex_, std::try_to_lock); }
  // Throws um::Error when the device is emptied.
  Locked alive();
  // Whether those who take part are still there. The lock is held, and unless it is, `guard` and all that follows it
  // below may be used while the device is alive or an op runs on it alone.
  bool has_parts() const { return parts_ != nullptr; }

  // ---- the lock is taken ----
  // `outside_ops`: whoever asks may write to the memory himself, or hand it to a kernel of `stream` that no op
  // announces: it is on the device at once, and stays until an op was given it. So does what an op asks for that only
  // creates.
  enum class Use : uint8_t { by_ops, outside_ops };
  void* allocate(uint64_t bytes, const um_placement& placement, void* stream, Use use = Use::by_ops);
  // Of any device. `free` returns false when no allocation starts there.
  static bool free(void* pointer) noexcept;
  static bool owns(const void* address) noexcept;
  static void describe(const void* address, um_allocation* out);
  static void label(const void* address, uint32_t role, uint32_t name);
  static Found find(uint64_t address, bool at_start);
  static Found find_range(const void* address, uint64_t bytes);

  // ---- the lock is held ----
  // nullptr for addresses that are not this device's; a block starts there or else contains the address.
  um::Arena* own_arena(uint64_t address) const;
  um::Block* own_block(const void* address) const;
  uint64_t list(um_allocation* out, uint64_t capacity);
  void query(um_device_info* out);
  // What nobody uses goes back to the driver.
  void trim();
  // Where the provider can; throw um::Error otherwise.
  void fail(const char* function, uint64_t nth);
  void set_link(const um_link& link, const um_driver_costs& costs);
  // Virtual time from now on (um_emulated_set_clock).
  void set_clock(const um_link& link, const um_driver_costs& costs);
  // Nanoseconds of one of `copies` copies in the directions asked for, which run at the same time (link_measure.cpp).
  void measure_link(uint64_t bytes, uint32_t copies, bool h2d, bool d2h, int64_t out_ns[2]);

  um::Backend backend;
  um::Owners& owners;
  std::unique_ptr<um::Allocations> allocations = std::make_unique<um::Allocations>(this, backend);  // until emptied
  std::unique_ptr<um::Fences> fences = std::make_unique<um::Fences>(backend);                       // likewise

 private:
  std::unique_ptr<Parts> parts_;

 public:
  um::Guard& guard;
  um::Observation& observation;
  um::Times& times;
  um::Accounts& accounts;
  um::BudgetKeeper& budget;
  um::Participant& workspaces;
  um::Streams& streams;
  um::Exports& exports;
  um::Swapping& swapping;
  um::Conversion& conversion;
  um::PlanExecutor& plan_executor;
  um::Recording& recording;
  um::Sampling& sampling;
  um::Repetition& repetition;
  um::StepUndo& step_undo;

 private:
  um_device(um::Backend its_backend, um::Owners& its_owners);
  um::Block* allocate_preferred(uint64_t bytes, um_placement placement, const um::Birth& birth);
  void place(um::Block* block, um::RunningOp* op, void* stream);
  void release(um::Block* block) noexcept;
  void give_back(um::Block* block) noexcept;
  bool empty_out() noexcept;
  void free_parts() noexcept;
  static void keep(um_device* device);
  um_allocation describe(const um::Block& block);

  static constexpr uint64_t kNothingRefused = ~uint64_t{0};
  std::mutex mutex_;
  std::atomic<bool> accepts_{true};
  uint64_t refused_bytes_ = kNothingRefused;  // the least that plain memory had no room for since one was freed last
  bool emptied_ = false;
};

// The participants. They refer to the device, not to each other.
struct um_device::Parts {
  explicit Parts(um_device& device);

  um::Guard guard;
  um::Observation observation;
  um::Times times;
  um::Accounts accounts;
  um::BudgetKeeper budget;
  std::unique_ptr<um::Participant> workspaces;
  um::Streams streams;
  um::Exports exports;
  um::Swapping swapping;
  um::Conversion conversion;
  um::PlanExecutor plan_executor;
  um::Recording recording;
  um::Sampling sampling;
  um::Repetition repetition;
  um::StepUndo step_undo;
};
