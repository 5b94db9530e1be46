#include "engine/guard.h"

#include <algorithm>

#include "base/clock.h"
#include "base/on_error.h"
#include "memory/address_map.h"
#include "memory/room.h"

namespace um {

RunningOp* Guard::enter(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, um_gather gather_accesses,
                        void* context) {
  times_.turn(UM_TIME_GUARD);
  make_room(base_.ops.running, base_.ops.running.size() + 1);
  RunningOp* const running = prepare(op, phase, module, flags);
  const OnError undo([&] {
    device_lock.assert_held();
    outside_ops();
    op_pool_.give(running);
    note_end();
  });
  const um_access* accesses = nullptr;
  uint32_t count = 0;
  gather_accesses(context, &accesses, &count);
  gather(*running, accesses, count);
  swaps_.op = running->identity;
  budget_.measure(*running);
  budget_.check(*running);
  for (Participant* const each : base_.participants.at_ops()) each->begin_op(*running);
  note_writes();
  base_.ops.running.push_back(running);
  step_ops_ += running->beside ? 0 : 1;
  ++base_.ops.count;
  if (!touches(*running)) times_.turn(UM_TIME_COMPUTE);
  return running;
}

// Returns whether the op's pages are paged in by touching them, before its time begins.
bool Guard::touches(const RunningOp& op) const { return base_.backend.ordered() && !op.working_set.accesses().empty(); }

// Pages in the op's working set if the device does that by touching, and begins the op's time. Takes the lock.
void Guard::bring(RunningOp& op) {
  if (touches(op)) {
    if (touch(op)) make_resident(op);
    const DeviceBase::HeldLock locked(base_.mutex);
    times_.turn(UM_TIME_COMPUTE);
  }
  if (op.recorded != 0) {
    op.serviced_ns = base_.backend.totals().stood.fault_ns();
    op.start_ns = base_.backend.now_ns();
  }
}

RunningOp* Guard::prepare(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags) {
  op_pool_.prepare(1);
  RunningOp* const running = op_pool_.take();
  running->device = base_.handle;
  running->untouched = (flags & UM_OP_CREATES) != 0;
  running->beside = (flags & UM_OP_BESIDE) != 0;
  running->may_begin_a_step = (flags & (UM_OP_BESIDE | UM_OP_AT_EDGE | UM_OP_RETRIED)) == 0;
  running->differentiated = (flags & UM_OP_DIFFERENTIATED) != 0;
  running->stream = op_stream;
  streams_.note(op_stream);
  running->identity = {base_.ops.step, step_ops_ + (running->beside ? 0 : 1), op, module, phase};
  running->working_set.clear();
  running->swapped.clear();
  running->made_out.clear();
  running->fixed.clear();
  running->most_bytes = 0;
  running->took_ns = UM_UNKNOWN;
  running->compute_ns = 0;
  running->recorded = running->timed = running->sampled = 0;
  return running;
}

// Outside ops, events are attributed to no op.
void Guard::outside_ops() noexcept {
  swaps_.op = {base_.ops.step, 0, 0, 0, 0};
  observation_.set_context(OpContexts::outside(base_.ops.step));
}

void Guard::gather(RunningOp& op, const um_access* accesses, uint32_t count) {
  base_.ops.operands.clear();
  for (uint32_t i = 0; i < count; ++i) {
    Block* const block = base_.own_block(accesses[i].address);
    if (block != nullptr)
      base_.ops.operands.push_back({block, address_of(accesses[i].address) - block->address, &accesses[i]});
  }
  for (const bool write : {false, true}) {  // reads first
    for (const Operand& operand : base_.ops.operands) {
      if ((operand.access->write != 0) != write) continue;
      notes(*operand.block).seen = true;
      base_.kind_of(*operand.block).use(op, operand);
    }
  }
  op.swapped_operands = op.swapped.size();
}

// Called for an op that has begun, because a refused op has written nothing.
void Guard::note_writes() noexcept {
  if (base_.ops.step == 0) return;
  for (const Operand& operand : base_.ops.operands) {
    if (operand.access->write != 0) step_undo_.note_write(*operand.block);
  }
}

// In ordered counting, pages in the op's working set: operands that are read, then those that are written, then its
// allocations. Returns false if all of it was resident.
bool Guard::touch(const RunningOp& op) const {
  const Backend& backend = base_.backend;
  bool serviced = false;
  for (const um_access& access : op.working_set.accesses()) {
    serviced |= backend.hooks->touch(backend.ordinal, address_of(access.address), access.bytes, access.write != 0);
  }
  return serviced;
}

// Evictions follow the order of service (uvm/uvm_pmm_gpu.c), and an old page of the set may be next. So the set is
// touched in order until a pass moves nothing. A set larger than the device never becomes resident, and is left to its
// faults.
void Guard::make_resident(const RunningOp& op) {
  const uint64_t total_bytes = base_.backend.total_bytes;
  if (op.working_set.bytes_if_above(total_bytes) <= total_bytes) {
    for (int pass = 0; pass < WorkingSet::kMostPasses && touch(op); ++pass) {
    }
  }
  const DeviceBase::HeldLock locked(base_.mutex);
  accounts_.sample_residency();
}

uint32_t Guard::end(RunningOp* op, const um_shown* outputs, uint32_t count) noexcept {
  running_op = nullptr;
  const Backend& backend = base_.backend;
  op->end_ns = op->recorded != 0 ? backend.now_ns() : 0;
  if (op->took_ns != UM_UNKNOWN) backend.hooks->run_op(backend.ordinal, op->took_ns);
  op->outputs = outputs;
  op->output_count = count;
  const DeviceBase::HeldLock locked(base_.mutex);
  op->compute_ns += times_.turn(UM_TIME_GUARD);
  base_.ops.running.erase(std::find(base_.ops.running.begin(), base_.ops.running.end(), op));
  for (uint32_t i = 0; i < count; ++i) {
    Block* const block = base_.own_block(outputs[i].address);
    if (block == nullptr) continue;
    notes(*block).seen = true;
    base_.kind_of(*block).meet(block, outputs[i].storage);
  }
  uint32_t unseen = 0;
  for (size_t i = op->swapped_operands; i < op->swapped.size(); ++i)
    unseen += notes(*op->swapped[i].block->block).seen ? 0 : 1;
  report_oversized(*op);
  for (Participant* const each : base_.participants.at_ends()) each->end_op(*op);
  swaps_.op = {base_.ops.step, 0, 0, 0, 0};
  op_pool_.give(op);
  note_end();
  return unseen;
}

// Called when no part of an op runs in this thread any more.
void Guard::note_end() noexcept {
  if (!base_.ops.running.empty()) return static_cast<void>(times_.turn(UM_TIME_COMPUTE));
  times_.outside_ops();
  budget_.outside_ops();
}

void Guard::report_oversized(const RunningOp& op) noexcept {
  if (op.most_bytes == 0 || op.most_bytes <= budget_.managed_limit_bytes()) return;
  ++base_.ops.oversized;
  um_event event{};
  event.start_ns = now_ns();
  event.bytes = op.most_bytes;
  tell_of(op.identity, &event);
  event.kind = UM_EVENT_OVERSIZED_OP;
  observation_.push(event);
}

void Guard::set_step(uint32_t step) {
  for (Participant* const each : base_.participants.at_ends()) each->end_step();
  base_.ops.step = step;
  step_ops_ = 0;
  outside_ops();
  for (Participant* const each : base_.participants.at_ops()) each->begin_step(step);
}

}  // namespace um
