#include "engine/managed_memory.h"

#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"
#include "memory/migration.h"

namespace um {

Block* ManagedMemory::make(const Request& request) {
  sampling_.expect_managed();
  return HeapMemory::make(request);
}

void ManagedMemory::place(Block* block, const Request& request) {
  RunningOp* const op = request.op;
  if (op == nullptr && request.placement.advice != UM_ADVICE_PREFETCH) return;
  const bool prefetched = block->arena->heap->placement.advice == UM_ADVICE_PREFETCH &&
                          base_.backend.why_no_migration() == nullptr && !budget_.holds(*block);
  if (op != nullptr && !op->untouched) {
    op->working_set.add(block->address, block->record.bytes, true);
    budget_.measure(*op);
    budget_.check(*op);
    budget_.end_exports_for(*op);
    budget_.keep([&](Budget& model) { model.use_newest(op->working_set); }, op->stream, op->identity);
  } else if (prefetched) {
    budget_.use(block->address, block->record.bytes, Budget::Use::to_device, request.stream);
  }
  if (prefetched) {
    const RequiredContext current(base_.backend);
    um::prefetch(base_.backend, block->address, block->record.bytes, false, request.stream);
    accounts_.sample_residency();
  }
}

// If the touch moved pages, or there was a prefetch, operands of the op may have been evicted.
bool ManagedMemory::touch(uint64_t address, const Request& request) {
  const Backend& backend = base_.backend;
  if (request.op->untouched || !backend.ordered()) return false;
  const bool serviced = backend.hooks->touch(backend.ordinal, address, request.bytes, true);
  return serviced || request.placement.advice == UM_ADVICE_PREFETCH;
}

void ManagedMemory::use(RunningOp& op, const Operand& operand) {
  Block* const block = operand.block;
  if (notes(*block).workspace) budget_.set_workspace(block, false);  // it is a tensor's after all
  HeapMemory::use(op, operand);
  const uint64_t at = block->address + operand.offset_bytes;  // cut to the allocation
  op.working_set.add(at, std::min(operand.access->bytes, block->end() - at), operand.access->write != 0);
}

void ManagedMemory::prefetch(Block* block, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream) {
  if (const char* reason = base_.backend.why_no_migration()) throw Error(UM_UNSUPPORTED, reason);
  if (to_host && notes(*block).exports > 0) {
    throw Error(UM_BAD_STATE, "the allocation is exported, so it stays on the device until the export is released");
  }
  budget_.use(address, bytes, to_host ? Budget::Use::to_host : Budget::Use::to_device);
  const RequiredContext current(base_.backend);
  um::prefetch(base_.backend, address, bytes, to_host, stream);
  accounts_.sample_residency();
}

bool ManagedMemory::can_hold(const Block& block, bool lasting) const {
  const uint64_t bytes = Exports::page_bytes(block);
  const bool exceeds_budget = bytes > budget_.managed_limit_bytes() && bytes <= base_.backend.total_bytes;
  return HeapMemory::can_hold(block, lasting) && !(lasting && exceeds_budget);
}

void ManagedMemory::hold(Block* block, bool /*for_life*/) {
  if (notes(*block).exports > 0) return;
  const Backend& backend = base_.backend;
  const uint64_t bytes = block->record.bytes, most_bytes = budget_.managed_limit_bytes();
  static_cast<void>(exports_.keep_pages_below(most_bytes - std::min(most_bytes, Exports::page_bytes(*block))));
  bool in_budget = false;
  const OnError undo([&] {
    device_lock.assert_held();
    if (in_budget) budget_.unpin(*block);
  });
  budget_.keep([&](Budget& model) {
    model.pin(block->address, bytes);
    in_budget = true;
  });
  while (!backend.hooks->pin(backend.ordinal, block->address, bytes)) {
    if (exports_.end_oldest(UM_MEMORY_MANAGED)) continue;
    throw Error(UM_OUT_OF_DEVICE_MEMORY,
                "an address of this tensor is to leave the device, which needs all of its " + in_words(bytes) +
                    " resident at once: with what is exported already that does not fit the capacity of " +
                    in_words(backend.total_bytes) + "; copy it out instead, or give back other exports");
  }
  accounts_.sample_residency();
}

void ManagedMemory::let_go(Block* block) noexcept {
  base_.backend.hooks->unpin(base_.backend.ordinal, block->address, block->record.bytes);
  budget_.unpin(*block);
}

void ManagedMemory::free(Block* block) noexcept {
  if (notes(*block).exports > 0) let_go(block);
  if (notes(*block).workspace) budget_.set_workspace(block, false);
  if (notes(*block).discarded) streams_.discard(*block);
  if (RunningOp* const op = base_.own_op()) op->working_set.remove(block->address);
  HeapMemory::free(block);
}

}  // namespace um
