// The guard: what runs before and after each op. Device's lock as each function says.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/participant.h"
#include "engine/running_op.h"
#include "memory/allocations.h"
#include "memory/stable_pool.h"

namespace um {

class Guard {
 public:
  explicit Guard(um_device& device);

  // ---- the lock is taken ----
  // Of a device that may have been closed: then um::Error is thrown, or nothing happens.
  static void begin_op(um_device& device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                       um_gather gather, void* context);
  static void begin_op(um_device& device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                       const um_access* accesses, uint32_t count);
  // Returns how many chunked allocations the op made that outlive it and were never seen.
  static uint32_t end_op(um_device& device, const um_shown* outputs, uint32_t count) noexcept;
  // Of any device.
  static void show(const void* address, void* storage) noexcept;
  // Something came onto the device for the op, and may have evicted what the op needs too.
  void settle(const RunningOp& op);

  // ---- the lock is held ----
  void set_step(uint32_t step);
  // Takes part from now on, or no longer.
  void join(Participant& participant) noexcept;
  void leave(Participant& participant) noexcept;
  void leave_all() noexcept;
  // Everybody who is present at ops, and who is when allocations come and go; in order.
  const std::vector<Participant*>& at_ops() const { return begins_; }
  const std::vector<Participant*>& at_memory() const { return memory_; }

  // The op of this device that runs in this thread; nullptr: none.
  RunningOp* own_op() const { return running_op != nullptr && running_op->device == &device_ ? running_op : nullptr; }
  // Of all threads.
  const std::vector<RunningOp*>& running_ops() const { return running_ops_; }
  uint32_t step() const { return step_; }
  // What the op that begins is given, of this device, as it lay before anything came.
  const std::vector<Operand>& operands() const { return operands_; }
  Birth birth(const RunningOp* op) const {
    if (op == nullptr) return {step_, 0, 0, 0};
    return {op->identity.step, op->identity.index, op->identity.op, op->identity.module};
  }
  // Notes what the working set has come to.
  void measure(RunningOp& op) const;
  void tell(um_counters* out) const;

 private:
  RunningOp* enter(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, um_gather gather, void* context);
  void bring(RunningOp& op);
  uint32_t end(RunningOp* op, const um_shown* outputs, uint32_t count) noexcept;
  RunningOp* prepare(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags);
  void gather(RunningOp& op, const um_access* accesses, uint32_t count);
  void use(RunningOp& op, const Operand& operand);
  void note_writes() noexcept;
  void outside_ops() noexcept;
  void note_end() noexcept;
  bool touches(const RunningOp& op) const;
  bool touch(const RunningOp& op) const;
  void report_oversized(const RunningOp& op) noexcept;

  um_device& device_;
  std::vector<Participant*> begins_, ends_, memory_;  // who is present, in order
  std::vector<Operand> operands_;
  std::vector<RunningOp*> running_ops_;
  StablePool<RunningOp> op_pool_;
  uint32_t step_ = 0, step_ops_ = 0;
  int64_t op_count_ = 0, oversized_ops_ = 0;
};

}  // namespace um
