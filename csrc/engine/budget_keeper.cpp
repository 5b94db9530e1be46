#include "engine/budget_keeper.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/error.h"
#include "memory/host_memory.h"

namespace um {

namespace {

// Returns the bytes of plain arenas that no allocation uses. After a conversion they still take device memory, which
// the budget for managed memory must not use.
uint64_t unused_plain_bytes(const Allocations& allocations) {
  uint64_t unused_bytes = 0;
  allocations.each_arena([&](const Arena& arena) {
    if (arena.heap->placement.memory != UM_MEMORY_DEVICE) return;
    unused_bytes += arena.bytes();
    arena.each_block([&](const Block& block) { unused_bytes -= block.bytes; });
  });
  return unused_bytes;
}

// Returns whether um_convert could move plain memory while the op runs.
bool has_convertible_plain(const Allocations& allocations, const RunningOp& op) {
  bool found = false;
  allocations.each_arena([&](const Arena& arena) {
    if (found || arena.heap->placement.memory != UM_MEMORY_DEVICE) return;
    arena.each_block([&](const Block& block) {
      const Notes& its = notes(block);
      const bool cannot_move = its.owner == nullptr || its.exports > 0 || its.gave_way || its.workspace;
      found = found || (!cannot_move && std::find(op.fixed.begin(), op.fixed.end(), &block) == op.fixed.end());
    });
  });
  return found;
}

// An op is refused once at its begin and once within, because after a conversion the remaining plain memory cannot be
// converted. This is the op that was refused last, as the device's count of ops. It is 0 when the first budget is set.
std::atomic<uint64_t> refused_last{0};

uint64_t place_of(const Ops& ops, const RunningOp& op) {
  const bool within = std::find(ops.running.begin(), ops.running.end(), &op) != ops.running.end();
  return 2 * static_cast<uint64_t>(ops.count) + (within ? 3 : 2);
}

}  // namespace

void BudgetKeeper::set(uint64_t bytes) {
  if (bytes == 0) {
    drop();
    base_.allocations->set_room(base_.backend.total_bytes);
    return;
  }
  if (bytes < 2 * kBlockBytes) {
    throw Error(UM_INVALID_ARGUMENT, "a budget of " + in_words(bytes) +
                                         " is below two blocks of 2 MiB: give at least " + in_words(2 * kBlockBytes));
  }
  if (const char* reason = base_.backend.why_no_migration())
    throw Error(UM_UNSUPPORTED, std::string("no budget can be kept: ") + reason);
  observation_.collect();
  static_cast<void>(base_.allocations->trim());  // empty arenas take the device's memory too
  uint64_t kept_bytes = std::min(bytes, most_bytes());
  if (owners_.remembers() && !base_.allocations->limits_plain()) {  // a limit of plain memory includes unused parts
    const uint64_t unused_bytes = unused_plain_bytes(*base_.allocations);
    kept_bytes = std::max(kept_bytes - std::min(kept_bytes, unused_bytes), 2 * kBlockBytes);
  }
  end_exports(kept_bytes - kBlockBytes);
  // Host and device bound managed memory. The factor of two is for arenas that are partly empty.
  const uint64_t managed_bytes = 2 * (base_.backend.total_host_bytes() + base_.backend.total_bytes);
  auto next = std::make_unique<Budget>(kept_bytes, static_cast<uint32_t>(managed_bytes / kBlockBytes));
  seed(*next);
  if (kept_ == nullptr) refused_last = 0;
  base_.backend.hooks->set_owner(serve_);
  base_.participants.join(*this);
  kept_ = std::move(next);
  budget_ = kept_.get();
  if (base_.ops.running.empty()) outside_ops();
  base_.allocations->set_room(kept_bytes);
}

void BudgetKeeper::drop() noexcept {
  base_.participants.leave(*this);
  budget_ = &none_;
  kept_.reset();
  announce_faults(false);
}

void BudgetKeeper::drop_if_idle() noexcept {
  bool idle = true;
  base_.allocations->each_block([&](const Block& block) { idle = idle && notes(block).workspace; });
  if (idle) drop();
}

// Other processes may have device memory too, so the bound is what the driver reports as free plus the managed memory
// on the device.
uint64_t BudgetKeeper::most_bytes() const {
  if (base_.backend.hooks->alone) return base_.backend.total_bytes;
  const RequiredContext current(base_.backend);
  size_t free_bytes = 0, total_bytes = 0;
  base_.backend.check(base_.backend.call().mem_get_info(&free_bytes, &total_bytes), "asking for free device memory");
  const uint64_t most_bytes = std::min<uint64_t>(base_.backend.total_bytes, free_bytes + resident_bytes());
  if (most_bytes >= 2 * kBlockBytes) return most_bytes;
  throw Error(UM_OUT_OF_DEVICE_MEMORY, "no budget can be kept: the driver says that " + in_words(most_bytes) +
                                           " of the device's " + in_words(base_.backend.total_bytes) +
                                           " are free; two blocks of 2 MiB are needed. End another process");
}

// Counts what is on the device against the new budget. Pages of freed allocations are counted first, so that they are
// evicted first. If the device cannot tell, the old budget can, and without one all live allocations count.
void BudgetKeeper::seed(Budget& budget) const {
  budget.follow(*base_.allocations);
  const auto bring = [&](uint64_t page, uint64_t on_device) {
    uint64_t on_host = 0;
    base_.backend.hooks->residency(base_.backend.ordinal, page, kBlockBytes, &on_device, &on_host);
    if (on_device != 0) budget.use(page, kBlockBytes, Budget::Use::to_device);
  };
  std::vector<const Arena*> arenas = base_.allocations->arenas_by_address();
  const auto other = [](const Arena* arena) { return arena->heap->placement.memory != UM_MEMORY_MANAGED; };
  arenas.erase(std::remove_if(arenas.begin(), arenas.end(), other), arenas.end());
  for (const Arena* arena : arenas) {
    for (uint64_t page = arena->address(); page < arena->address() + arena->bytes(); page += kBlockBytes)
      bring(page, budget_->holds(page, 1) ? 1 : 0);
  }
  for (const Arena* arena : arenas) {
    arena->each_block([&](const Block& block) {
      for (uint64_t page = block.address / kBlockBytes * kBlockBytes; page < block.end(); page += kBlockBytes)
        bring(page, 1);
      if (notes(block).exports > 0 || notes(block).workspace) budget.pin(block.address, block.record.bytes);
    });
  }
  const RequiredContext current(base_.backend);
  budget.enforce(base_.backend, nullptr);
}

void BudgetKeeper::check(const RunningOp& op) const {
  if (!budget_->bounded() || !owners_.converts_in_ops()) return;
  if (refused_last == place_of(base_.ops, op)) {  // tried again: the conversion has sent away pages that it was given
    budget_->follow(*base_.allocations);
    return budget_->use(op.working_set);
  }
  if (op.most_bytes <= managed_limit_bytes() || !has_convertible_plain(*base_.allocations, op)) return;
  refused_last = place_of(base_.ops, op);
  throw Error(UM_OUT_OF_DEVICE_MEMORY, "an op uses " + in_words(op.most_bytes) + " of unified memory, whose share is " +
                                           in_words(managed_limit_bytes()) +
                                           " of the budget beside plain memory: convert plain memory");
}

void BudgetKeeper::measure(RunningOp& op) const {
  if (op.working_set.accesses().empty()) return;
  op.most_bytes = std::max(op.most_bytes, op.working_set.bytes_if_above(managed_limit_bytes()));
}

void BudgetKeeper::end_exports_for(const RunningOp& op) {
  if (budget_->bounded()) end_exports_beyond(op.working_set.bytes_if_above(budget_->room_bytes()));
}

void BudgetKeeper::use(uint64_t address, uint64_t bytes, Budget::Use use, driver::CUstream stream,
                       const OpIdentity& op) {
  if (use != Budget::Use::to_host) end_exports_beyond(Budget::spanned_bytes(address, bytes));
  keep([&](Budget& budget) { budget.use(address, bytes, use); }, stream, op);
}

void BudgetKeeper::end_exports_beyond(uint64_t needed_bytes) {
  const uint64_t room_bytes = budget_->room_bytes();
  if (!budget_->bounded() || room_bytes == budget_->bytes() || needed_bytes <= room_bytes) return;
  const RequiredContext current(base_.backend);
  end_exports(budget_->bytes() - std::min(budget_->bytes(), needed_bytes));
}

void BudgetKeeper::begin_op(RunningOp& op) {
  end_exports_for(op);
  keep([&](Budget& budget) { budget.use(op.working_set); }, op.stream, op.identity);
  announce_faults(base_.backend.ordered());  // in raw counting all pages of an op fault, and have been counted
}

void BudgetKeeper::count_fault(uint64_t address, bool write) {
  const std::vector<RunningOp*>& running = base_.ops.running;
  const auto uses_it = [&](const RunningOp* op) { return op->working_set.use_of(address).has_value(); };
  if (std::any_of(running.begin(), running.end(), uses_it)) return;
  end_exports_beyond(kBlockBytes);
  keep([&](Budget& budget) {
    device_lock.assert_held();
    budget.use(address, 1, write ? Budget::Use::write : Budget::Use::read);
    uint64_t used_bytes = 0;
    for (const RunningOp* op : running) {
      budget.use(op->working_set);
      used_bytes += op->working_set.bytes_if_above(0);
    }
    budget.keep_faulted(address, used_bytes);
  });
}

void BudgetKeeper::announce_faults(bool on) const noexcept {
  base_.backend.hooks->announce_faults(base_.backend.ordinal, on);
}

// The enforcement is measured as stall time: the driver takes much longer to unmap and map pages than to copy them, and
// CUPTI records only the copies.
void BudgetKeeper::enforce(driver::CUstream stream, const OpIdentity& op) {
  if (base_.backend.hooks->in_host) return budget_->enforce(base_.backend, nullptr);
  sampling_.stands(op, stream, [&] { budget_->enforce(base_.backend, stream); });
}

uint64_t BudgetKeeper::managed_limit_bytes() const {
  const uint64_t total_bytes = base_.backend.total_bytes;
  return std::min(total_bytes - std::min(total_bytes, base_.allocations->plain_bytes()), budget_->bytes());
}

// Returns an upper bound if the device cannot tell.
uint64_t BudgetKeeper::resident_bytes() const {
  return std::min(budget_->resident_bytes(),
                  base_.allocations->statistics.reserved_bytes.now - base_.allocations->plain_bytes());
}

void BudgetKeeper::set_workspace(Block* block, bool is_one) {
  notes(*block).workspace = is_one;
  is_one ? budget_->pin(block->address, block->record.bytes) : unpin(*block);
}

}  // namespace um
