#include "engine/guard.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/room.h"

namespace um {

Guard::Guard(um_device& device) : device_(device) {
  for (std::vector<Participant*>* all : {&begins_, &ends_, &memory_}) all->reserve(kMostParticipants);
}

void Guard::begin_op(um_device& device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                     const um_access* accesses, uint32_t count) {
  std::pair<const um_access*, uint32_t> given(accesses, count);
  const um_gather give = [](void* context, const um_access** out, uint32_t* out_count) {
    std::tie(*out, *out_count) = *static_cast<decltype(given)*>(context);
  };
  begin_op(device, op, phase, module, flags, give, &given);
}

void Guard::begin_op(um_device& device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                     um_gather gather_accesses, void* context) {
  if (running_op != nullptr) throw Error(UM_BAD_STATE, "an op runs in this thread already: ops do not nest");
  RunningOp* running = nullptr;
  {
    const um_device::Locked alive = device.alive();
    running = device.guard.enter(op, phase, module, flags, gather_accesses, context);
  }
  running_op = running;
  const OnError end(
      [&] { static_cast<void>(end_op(device, nullptr, 0)); });  // the caller ends only ops whose begin succeeded
  device.guard.bring(*running);
}

RunningOp* Guard::enter(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags, um_gather gather_accesses,
                        void* context) {
  device_.times.turn(UM_TIME_GUARD);
  make_room(running_ops_, running_ops_.size() + 1);
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
  device_.observation.swaps.op = running->identity;
  measure(*running);
  device_.budget.check(*running);
  for (Participant* const each : begins_) each->begin_op(*running);
  note_writes();
  running_ops_.push_back(running);
  step_ops_ += running->beside ? 0 : 1;
  ++op_count_;
  if (!touches(*running)) device_.times.turn(UM_TIME_COMPUTE);
  return running;
}

// Returns whether the op's pages are paged in by touching them, before its time begins.
bool Guard::touches(const RunningOp& op) const {
  return device_.backend.ordered() && !op.working_set.accesses().empty();
}

// Pages in the op's working set if the device does that by touching, and begins the op's time. Takes the lock.
void Guard::bring(RunningOp& op) {
  if (touches(op)) {
    if (touch(op)) make_resident(op);
    const um_device::Locked locked = device_.lock();
    device_.times.turn(UM_TIME_COMPUTE);
  }
  if (op.recorded != 0) {
    op.serviced_ns = device_.backend.totals().stood.fault_ns();
    op.start_ns = device_.backend.now_ns();
  }
}

RunningOp* Guard::prepare(uint32_t op, uint32_t phase, uint32_t module, uint32_t flags) {
  op_pool_.prepare(1);
  RunningOp* const running = op_pool_.take();
  running->device = &device_;
  running->untouched = (flags & UM_OP_CREATES) != 0;
  running->beside = (flags & UM_OP_BESIDE) != 0;
  running->may_begin_a_step = (flags & (UM_OP_BESIDE | UM_OP_AT_EDGE | UM_OP_RETRIED)) == 0;
  running->differentiated = (flags & UM_OP_DIFFERENTIATED) != 0;
  running->stream = op_stream;
  device_.streams.note(op_stream);
  running->identity = {step_, step_ops_ + (running->beside ? 0 : 1), op, module, phase};
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
  device_.observation.swaps.op = {step_, 0, 0, 0, 0};
  device_.observation.set_context(OpContexts::outside(step_));
}

void Guard::gather(RunningOp& op, const um_access* accesses, uint32_t count) {
  operands_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    Block* const block = device_.own_block(accesses[i].address);
    if (block != nullptr) operands_.push_back({block, address_of(accesses[i].address) - block->address, &accesses[i]});
  }
  for (const bool write : {false, true}) {  // reads first
    for (const Operand& operand : operands_) {
      if ((operand.access->write != 0) == write) use(op, operand);
    }
  }
  op.swapped_operands = op.swapped.size();
}

// Called for an op that has begun, because a refused op has written nothing.
void Guard::note_writes() noexcept {
  if (step_ == 0) return;
  for (const Operand& operand : operands_) {
    if (operand.access->write != 0) device_.step_undo.note_write(*operand.block);
  }
}

// Dispatches on the kind of memory.
void Guard::use(RunningOp& op, const Operand& operand) {
  Block* const block = operand.block;
  notes(*block).seen = true;
  if (notes(*block).workspace) device_.budget.set_workspace(block, false);  // it is a tensor's after all
  device_.conversion.meet(block, operand.access->storage);
  if (notes(*block).movable != nullptr) {
    notes(*block).movable->state.change(Change::admit);
    op.swapped.push_back({notes(*block).movable, operand.access->write != 0});
    return;
  }
  op.fixed.push_back(block);
  if (managed(*block)) {
    const uint64_t at = block->address + operand.offset_bytes;  // cut to the allocation
    op.working_set.add(at, std::min(operand.access->bytes, block->end() - at), operand.access->write != 0);
  } else if (block->arena->heap->placement.memory == UM_MEMORY_CHUNKED) {  // a small one, which is never evicted
    static_cast<void>(device_.swapping.mover().waits.streams.bit_of(op.stream));
  }
}

// In ordered counting, pages in the op's working set: operands that are read, then those that are written, then its
// allocations. Returns false if all of it was resident.
bool Guard::touch(const RunningOp& op) const {
  const Backend& backend = device_.backend;
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
  const uint64_t total_bytes = device_.backend.total_bytes;
  if (op.working_set.bytes_if_above(total_bytes) <= total_bytes) {
    for (int pass = 0; pass < WorkingSet::kMostPasses && touch(op); ++pass) {
    }
  }
  const um_device::Locked locked = device_.lock();
  device_.accounts.sample_residency();
}

uint32_t Guard::end_op(um_device& device, const um_shown* outputs, uint32_t count) noexcept {
  const bool runs = running_op != nullptr && running_op->device == &device;
  return runs ? device.guard.end(running_op, outputs, count) : 0;
}

uint32_t Guard::end(RunningOp* op, const um_shown* outputs, uint32_t count) noexcept {
  running_op = nullptr;
  const Backend& backend = device_.backend;
  op->end_ns = op->recorded != 0 ? backend.now_ns() : 0;
  if (op->took_ns != UM_UNKNOWN) backend.hooks->run_op(backend.ordinal, op->took_ns);
  op->outputs = outputs;
  op->output_count = count;
  const um_device::Locked locked = device_.lock();
  op->compute_ns += device_.times.turn(UM_TIME_GUARD);
  running_ops_.erase(std::find(running_ops_.begin(), running_ops_.end(), op));
  for (uint32_t i = 0; i < count; ++i) {
    Block* const block = device_.own_block(outputs[i].address);
    if (block == nullptr) continue;
    notes(*block).seen = true;
    device_.conversion.meet(block, outputs[i].storage);
  }
  uint32_t unseen = 0;
  for (size_t i = op->swapped_operands; i < op->swapped.size(); ++i)
    unseen += notes(*op->swapped[i].block->block).seen ? 0 : 1;
  report_oversized(*op);
  for (Participant* const each : ends_) each->end_op(*op);
  device_.observation.swaps.op = {step_, 0, 0, 0, 0};
  op_pool_.give(op);
  note_end();
  return unseen;
}

// Called when no part of an op runs in this thread any more.
void Guard::note_end() noexcept {
  if (!running_ops_.empty()) return static_cast<void>(device_.times.turn(UM_TIME_COMPUTE));
  device_.times.outside_ops();
  device_.budget.outside_ops();
}

void Guard::measure(RunningOp& op) const {
  if (op.working_set.accesses().empty()) return;
  op.most_bytes = std::max(op.most_bytes, op.working_set.bytes_if_above(device_.budget.managed_limit_bytes()));
}

void Guard::report_oversized(const RunningOp& op) noexcept {
  if (op.most_bytes == 0 || op.most_bytes <= device_.budget.managed_limit_bytes()) return;
  ++oversized_ops_;
  um_event event{};
  event.start_ns = now_ns();
  event.bytes = op.most_bytes;
  tell_of(op.identity, &event);
  event.kind = UM_EVENT_OVERSIZED_OP;
  device_.observation.push(event);
}

void Guard::set_step(uint32_t step) {
  for (Participant* const each : ends_) each->end_step();
  step_ = step;
  step_ops_ = 0;
  outside_ops();
  for (Participant* const each : begins_) each->begin_step(step);
}

void Guard::tell(um_counters* out) const {
  out->op_count = op_count_;
  out->oversized_ops = oversized_ops_;
}

void Guard::show(const void* address, void* storage) noexcept {
  const um_device::Found found = um_device::find(address_of(address), true);
  if (found.block != nullptr) found.device->conversion.meet(found.block, storage);
}

// ---- who takes part --------------------------------------------------------------------------------------------

void Guard::join(Participant& participant) noexcept {
  leave(participant);
  const auto enter = [&](std::vector<Participant*>& all, uint8_t Turns::* turn) {
    const uint8_t own = participant.turns.*turn;
    const auto later = [&](const Participant* each) { return each->turns.*turn > own; };
    if (own != kNever) all.insert(std::find_if(all.begin(), all.end(), later), &participant);
  };
  enter(begins_, &Turns::begin);
  enter(ends_, &Turns::end);
  enter(memory_, &Turns::memory);
}

void Guard::leave(Participant& participant) noexcept {
  for (std::vector<Participant*>* all : {&begins_, &ends_, &memory_})
    all->erase(std::remove(all->begin(), all->end(), &participant), all->end());
}

void Guard::leave_all() noexcept {
  for (std::vector<Participant*>* all : {&begins_, &ends_, &memory_}) all->clear();
}

}  // namespace um
