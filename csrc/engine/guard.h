// Runs before and after each op: makes its operands resident, keeps them so until it ends, and calls the participants.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_safety.h"
#include "engine/participant.h"
#include "engine/running_op.h"
#include "memory/allocations.h"
#include "memory/stable_pool.h"

namespace um {

class Guard {
 public:
  explicit Guard(um_device& device);

  // ---- the lock is taken ----
  // Begin an op. Throw um::Error if the device has been closed. end_op() then does nothing.
  static void begin_op(um_device& device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                       um_gather gather, void* context);
  static void begin_op(um_device& device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                       const um_access* accesses, uint32_t count);
  // Returns how many chunked allocations the op made that outlive it and were never seen.
  static uint32_t end_op(um_device& device, const um_shown* outputs, uint32_t count) noexcept;
  // Shows an allocation of any device.
  static void show(const void* address, void* storage) noexcept;
  // Makes the op's working set resident again, after another page that was paged in for the op may have evicted part of
  // it.
  void make_resident(const RunningOp& op);

  // ---- what participants ask ----
  void set_step(uint32_t step) REQUIRES(device_lock);
  // Adds or removes a participant.
  void join(Participant& participant) noexcept REQUIRES(device_lock);
  void leave(Participant& participant) noexcept REQUIRES(device_lock);
  void leave_all() noexcept REQUIRES(device_lock);
  // Return the participants at ops and at allocations, in order.
  const std::vector<Participant*>& at_ops() const REQUIRES(device_lock) { return begins_; }
  const std::vector<Participant*>& at_memory() const REQUIRES(device_lock) { return memory_; }

  // Returns the op of this device that runs in this thread; nullptr: none.
  RunningOp* own_op() const { return running_op != nullptr && running_op->device == &device_ ? running_op : nullptr; }
  // Returns the running ops of all threads.
  const std::vector<RunningOp*>& running_ops() const REQUIRES(device_lock) { return running_ops_; }
  uint32_t step() const REQUIRES(device_lock) { return step_; }
  // Returns the operands of the op that begins, on this device, as they lay before any swap-in.
  const std::vector<Operand>& operands() const REQUIRES(device_lock) { return operands_; }
  Birth birth(const RunningOp* op) const REQUIRES(device_lock) {
    if (op == nullptr) return {step_, 0, 0, 0};
    return {op->identity.step, op->identity.index, op->identity.op, op->identity.module};
  }
  // Notes the size of the working set.
  void measure(RunningOp& op) const REQUIRES(device_lock);
  void tell(um_counters* out) const REQUIRES(device_lock);

 private:
  RunningOp* enter(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, um_gather gather, void* context)
      REQUIRES(device_lock);
  void bring(RunningOp& op);
  uint32_t end(RunningOp* op, const um_shown* outputs, uint32_t count) noexcept;
  RunningOp* prepare(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags) REQUIRES(device_lock);
  void gather(RunningOp& op, const um_access* accesses, uint32_t count) REQUIRES(device_lock);
  void use(RunningOp& op, const Operand& operand) REQUIRES(device_lock);
  void note_writes() noexcept REQUIRES(device_lock);
  void outside_ops() noexcept REQUIRES(device_lock);
  void note_end() noexcept REQUIRES(device_lock);
  bool touches(const RunningOp& op) const;
  bool touch(const RunningOp& op) const;
  void report_oversized(const RunningOp& op) noexcept REQUIRES(device_lock);

  um_device& device_;
  std::vector<Participant*> begins_ GUARDED_BY(device_lock), ends_ GUARDED_BY(device_lock),
      memory_ GUARDED_BY(device_lock);  // the present participants, in order
  std::vector<Operand> operands_ GUARDED_BY(device_lock);
  std::vector<RunningOp*> running_ops_ GUARDED_BY(device_lock);
  StablePool<RunningOp> op_pool_ GUARDED_BY(device_lock);
  uint32_t step_ GUARDED_BY(device_lock) = 0, step_ops_ GUARDED_BY(device_lock) = 0;
  int64_t op_count_ GUARDED_BY(device_lock) = 0, oversized_ops_ GUARDED_BY(device_lock) = 0;
};

}  // namespace um
