// The part of a device that all of its participants may use: the driver, the allocations, the running ops, and who
// takes part. A participant gets whatever else it uses as arguments of its constructor, from lower floors of the engine
// (tests/unit/test_layers.py). So no file below engine/device.h knows um_device.
//
// One lock guards all members of a device. Its holder may call the driver and the device's hooks, but never touches
// managed memory (docs/architecture.md, locks).
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/thread_safety.h"
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

class DeviceBase {
 public:
  // Owns the device's lock while it lives.
  struct [[nodiscard]] SCOPED_CAPABILITY HeldLock {
    explicit HeldLock(std::mutex& mutex) ACQUIRE(device_lock) : lock(mutex) {}
    ~HeldLock() RELEASE() {}
    owners::Lock lock;
  };

  DeviceBase(um_device* its_handle, Backend its_backend, Owners& its_owners);

  // Return nullptr for an address of another device. The block starts at the address, or else contains it.
  Arena* own_arena(uint64_t address) const;
  Block* own_block(const void* address) const;
  // Returns the op of this device that runs in this thread; nullptr: none.
  RunningOp* own_op() const { return running_op != nullptr && running_op->device == handle ? running_op : nullptr; }

  um_device* const handle;
  Backend backend;
  Owners& owners;
  // Both are reset when the device is emptied.
  std::unique_ptr<Allocations> allocations;
  std::unique_ptr<Fences> fences;
  std::mutex mutex;
  Ops ops GUARDED_BY(device_lock);
  Participants participants GUARDED_BY(device_lock);
};

}  // namespace um
