// The part of a device that all of its participants may use: the driver, the allocations, the kinds of memory, the
// running ops, and the participants that are present. A participant gets all else that it uses as references in its
// constructor, from lower floors of the engine (tests/unit/test_layers.py). So no file below engine/device.h knows
// um_device.
//
// One lock guards all members of a device. Its holder may call the driver and the device's hooks, but never touches
// managed memory (docs/architecture.md, locks).
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/thread_safety.h"
#include "engine/memory_kind.h"
#include "engine/owners.h"
#include "engine/participant.h"
#include "engine/running_op.h"
#include "memory/allocations.h"
#include "memory/backend.h"

namespace um {

// The ops of a device and its step, which the guard sets.
struct Ops {
  Birth birth(const RunningOp* op) const {
    if (op == nullptr) return {step, 0, 0, 0};
    return {op->identity.step, op->identity.index, op->identity.op, op->identity.module};
  }
  void tell(um_counters* out) const {
    out->op_count = count;
    out->oversized_ops = oversized;
  }

  std::vector<RunningOp*> running;  // of all threads
  std::vector<Operand> operands;    // of the op that begins, on this device, as they lay before any swap-in
  uint32_t step = 0;                // 0: no step
  int64_t count = 0, oversized = 0;
};

// The participants that are present, in the order of their turns.
class Participants {
 public:
  Participants();
  void join(Participant& participant) noexcept;
  void leave(Participant& participant) noexcept;
  void leave_all() noexcept { begins_.clear(), ends_.clear(), memory_.clear(); }
  // Return those that are called when ops begin, when ops end, and at allocations.
  const std::vector<Participant*>& at_ops() const { return begins_; }
  const std::vector<Participant*>& at_ends() const { return ends_; }
  const std::vector<Participant*>& at_memory() const { return memory_; }

 private:
  std::vector<Participant*> begins_, ends_, memory_;
};

class DeviceBase {
 public:
  // Owns the device's lock while it lives.
  struct [[nodiscard]] SCOPED_CAPABILITY HeldLock {
    explicit HeldLock(std::mutex& mutex) ACQUIRE(device_lock) : lock(mutex) {}
    ~HeldLock() RELEASE() {}
    owners::Lock lock;
  };

  DeviceBase(um_device* its_handle, Backend its_backend, Owners& its_owners)
      : handle(its_handle), backend(std::move(its_backend)), owners(its_owners) {}

  // Return nullptr for an address of another device. The block starts at the address, or else contains it.
  Arena* own_arena(uint64_t address) const;
  Block* own_block(const void* address) const;
  // Returns the op of this device that runs in this thread; nullptr: none.
  RunningOp* own_op() const { return running_op != nullptr && running_op->device == handle ? running_op : nullptr; }

  // Returns the memory that the allocation is of.
  MemoryKind& kind_of(const Block& block) const { return *kinds[block.arena->heap->placement.memory]; }

  um_device* const handle;
  Backend backend;
  Owners& owners;
  // Both are reset when the device is emptied.
  std::unique_ptr<Allocations> allocations = std::make_unique<Allocations>(handle, backend);
  std::unique_ptr<Fences> fences = std::make_unique<Fences>(backend);
  std::mutex mutex;
  Ops ops GUARDED_BY(device_lock);
  Participants participants GUARDED_BY(device_lock);
  std::array<MemoryKind*, UM_MEMORY_CHUNKED + 1> kinds{};  // by um_memory
};

}  // namespace um
