#include "engine/budget_keeper.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "engine/device.h"
#include "memory/host_memory.h"

namespace um {

void BudgetKeeper::set(uint64_t bytes) {
  if (bytes == 0) {
    drop();
    device_.allocations->set_room(backend().total_bytes);
    return;
  }
  if (bytes < 2 * kBlockBytes) {
    throw Error(UM_INVALID_ARGUMENT, "a budget of " + in_words(bytes) +
                                         " is below two blocks of 2 MiB: give at least " + in_words(2 * kBlockBytes));
  }
  if (const char* reason = backend().why_no_migration())
    throw Error(UM_UNSUPPORTED, std::string("no budget can be kept: ") + reason);
  const uint64_t kept_bytes = std::min(bytes, most_bytes());
  // Managed memory cannot be more than host and device hold; arenas may be part empty, hence twice that.
  const uint64_t managed_bytes = 2 * (backend().total_host_bytes() + backend().total_bytes);
  auto next = std::make_unique<Budget>(kept_bytes, static_cast<uint32_t>(managed_bytes / kBlockBytes));
  seed(*next);
  device_.guard.join(*this);
  kept_ = std::move(next);
  budget_ = kept_.get();
  device_.allocations->set_room(kept_bytes);
}

void BudgetKeeper::drop() noexcept {
  device_.guard.leave(*this);
  budget_ = &none_;
  kept_.reset();
}

void BudgetKeeper::drop_if_idle() noexcept {
  bool idle = true;
  device_.allocations->each_block([&](const Block& block) { idle = idle && notes(block).workspace; });
  if (idle) drop();
}

// Others may have memory of the device too: what the driver says is free, and what managed memory has of it, is all
// that there is.
uint64_t BudgetKeeper::most_bytes() const {
  if (backend().hooks->alone) return backend().total_bytes;
  const RequiredContext current(backend());
  size_t free_bytes = 0, total_bytes = 0;
  backend().check(backend().call().mem_get_info(&free_bytes, &total_bytes), "asking for free device memory");
  const uint64_t most_bytes = std::min<uint64_t>(backend().total_bytes, free_bytes + resident_bytes());
  if (most_bytes >= 2 * kBlockBytes) return most_bytes;
  throw Error(UM_OUT_OF_DEVICE_MEMORY, "no budget can be kept: the driver says that " + in_words(most_bytes) +
                                           " of the device's " + in_words(backend().total_bytes) +
                                           " are free; two blocks of 2 MiB are needed. End another process");
}

// What is on the device now counts against a new budget; where nobody can tell, all that is live.
void BudgetKeeper::seed(Budget& budget) const {
  budget.follow(allocations());
  for (const Arena* arena : allocations().arenas_by_address()) {
    if (arena->heap->placement.memory != UM_MEMORY_MANAGED) continue;
    arena->each_block([&](const Block& block) {
      for (uint64_t page = block.address / kBlockBytes * kBlockBytes; page < block.end(); page += kBlockBytes) {
        uint64_t on_device = 1, on_host = 0;
        backend().hooks->residency(backend().ordinal, page, kBlockBytes, &on_device, &on_host);
        if (on_device != 0) budget.use(page, kBlockBytes, Budget::Use::to_device);
      }
      if (notes(block).exports > 0 || notes(block).workspace) budget.pin(block.address, block.record.bytes);
    });
  }
  const RequiredContext current(backend());
  budget.enforce(backend(), nullptr);
}

void BudgetKeeper::begin_op(RunningOp& op) {
  keep([&](Budget& budget) { budget.use(op.working_set); }, op.stream, op.identity);
}

// The driver takes many times as long to unmap and map pages as to copy them, and records the copies alone.
void BudgetKeeper::enforce(driver::CUstream stream, const OpIdentity& op) {
  if (backend().hooks->in_host) return budget_->enforce(backend(), nullptr);
  device_.sampling.stands(op, stream, [&] { budget_->enforce(backend(), stream); });
}

uint64_t BudgetKeeper::managed_limit_bytes() const {
  const uint64_t total_bytes = backend().total_bytes;
  return std::min(total_bytes - std::min(total_bytes, allocations().plain_bytes()), budget_->bytes());
}

// As far as anybody knows.
uint64_t BudgetKeeper::resident_bytes() const {
  return std::min(budget_->resident_bytes(), allocations().statistics.reserved_bytes.now - allocations().plain_bytes());
}

void BudgetKeeper::set_workspace(Block* block, bool is_one) {
  notes(*block).workspace = is_one;
  is_one ? budget_->pin(block->address, block->record.bytes) : unpin(*block);
}

const Backend& BudgetKeeper::backend() const { return device_.backend; }
const Allocations& BudgetKeeper::allocations() const { return *device_.allocations; }

}  // namespace um
