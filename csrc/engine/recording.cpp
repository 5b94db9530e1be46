#include "engine/recording.h"

#include <new>

#include "engine/device_base.h"

namespace um {

void Recording::set(bool on) {
  observation_.collect();
  durations.settle();
  if (!on) {
    base_.participants.leave(*this);
    base_.participants.leave(durations);
    return tape_.stop();
  }
  swapping_.begin_anew();
  std::vector<um_recorded_allocation> present;
  base_.allocations->each_block([&](const Block& block) {
    const Record& record = block.record;
    present.push_back({record.serial, record.bytes, record.role, record.name, record.birth_module, notes(block).seen});
  });
  std::sort(present.begin(), present.end(),
            [](const auto& one, const auto& other) { return one.allocation < other.allocation; });
  base_.participants.join(*this);
  if (!base_.backend.hooks->in_host) {
    base_.participants.join(durations);
    durations.start();
  }
  tape_.start(present);
  dropped_before_ = base_.backend.hooks->dropped(base_.backend.ordinal);
}

uint64_t Recording::lost() const {
  const uint64_t dropped = base_.backend.hooks->dropped(base_.backend.ordinal);
  return tape_.lost() + (dropped > dropped_before_ ? dropped - dropped_before_ : 0);
}

void Recording::begin_op(RunningOp& op) {
  if (op.beside) return;
  const OpIdentity& identity = op.identity;
  um_recorded_op row{};
  row.op = identity.op;
  row.phase = identity.phase;
  row.module = identity.module;
  row.step = identity.step;
  row.creates = op.untouched;
  op.recorded = tape_.begin_op(row);
  if (op.recorded == 0) return;
  for (const Operand& given : base_.ops.operands) {
    tape_.seen(*given.block);
    tape_.access(*given.block, given.offset_bytes, *given.access);
  }
}

void Recording::end_op(RunningOp& op) noexcept {
  if (op.recorded == 0) return;
  try {
    std::vector<uint64_t> serials(op.output_count);
    for (uint32_t i = 0; i < op.output_count; ++i) {
      const Block* block = base_.own_block(op.outputs[i].address);
      serials[i] = block != nullptr ? block->record.serial : 0;
      if (block != nullptr) tape_.seen(*block);
    }
    // The fault services of several threads may add up to more than the op's time.
    const int64_t serviced_ns = base_.backend.totals().stood.fault_ns() - op.serviced_ns;
    const int64_t measured_ns = std::max<int64_t>(0, op.end_ns - op.start_ns - serviced_ns);
    tape_.end_op(op.recorded, op.took_ns != UM_UNKNOWN ? op.took_ns : measured_ns, serials);
  } catch (const std::bad_alloc&) {
    tape_.lose(1);
  }
}

// Services until now belong to the step that ends.
void Recording::end_step() { observation_.collect(); }

void Recording::freed(Block* block) noexcept { tape_.freed(*block, inside()); }

bool Recording::inside() const {
  const RunningOp* const own = base_.own_op();
  return own != nullptr && own->recorded != 0;
}

// Collects events before the copy, because they happened earlier.
void Recording::copied(um_recorded_event_kind kind, const Block& block, uint64_t address, uint64_t bytes) noexcept {
  if (!tape_.on()) return;
  observation_.collect();
  tape_.happened(kind, block, address, bytes, inside());
}

}  // namespace um
