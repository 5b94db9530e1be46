// The guard: what happens before and after each op.
#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/host_memory.h"
#include "memory/room.h"

using um::Error;
using um::RunningOp;

// nullptr for addresses that are not this device's.
um::Arena* um_device::own_arena(uint64_t address) const {
  um::Arena* arena = um::address_map().find(address);
  return arena != nullptr && arena->device.load(std::memory_order_relaxed) == this ? arena : nullptr;
}

// The block of this device that starts at, or else contains, the address; nullptr for foreign ones.
um::Block* um_device::own_block(const void* address) const {
  const uint64_t at = um::address_of(address);
  const um::Arena* arena = own_arena(at);
  if (arena == nullptr) return nullptr;
  um::Block* block = arena->starting_at(at);
  return block != nullptr ? block : arena->containing(at);
}

void um_device::begin_op(uint32_t op, uint32_t phase, uint32_t module, bool untouched, const um_access* accesses,
                         uint32_t count) {
  if (um::running_op != nullptr) throw Error(UM_BAD_STATE, "an op runs in this thread already: ops do not nest");
  RunningOp* running = nullptr;
  {
    const Lock lock = lock_alive();
    collect_device_events();  // what came between the ops belongs before this one
    op_pool_.prepare(1);
    um::make_room(running_ops_, running_ops_.size() + 1);
    running = op_pool_.take();
    const um::OnError undo([&] {
      outside_ops();
      op_pool_.give(running);
    });
    running->device = this;
    running->untouched = untouched;
    running->stream = um::op_stream;
    note_stream(um::op_stream);
    running->identity = {step_, step_ops_ + 1, op, module, phase};
    running->working_set.clear();
    running->swapped.clear();
    running->most_bytes = 0;
    gather(*running, accesses, count);
    if (backend_.hooks != nullptr) backend_.hooks->set_context(backend_.ordinal, contexts_.begin(running->identity));
    if (residency_ != nullptr) residency_->note(running->identity);
    swap_events_.op = running->identity;
    measure(*running);
    if (program_ != nullptr) follow_op(*running);
    keep_budget([&](um::Budget& budget) { budget.use(running->working_set); }, running->stream);
    if (!running->swapped.empty()) bring_in(*running);
    running_ops_.push_back(running);
    ++step_ops_;
    ++op_count_;
    record_begin(*running, accesses, count);
    time_begin(*running);
    sample_begin(*running);
  }
  um::running_op = running;
  const um::OnError end([&] { end_op(nullptr, 0); });  // the caller ends only what has begun
  if (backend_.ordered() && touch(*running)) settle(*running);
  if (running->recorded != 0) {
    running->serviced_ns = backend_.totals().fault_service_ns;
    running->start_ns = um::now_ns();
  }
}

// Whatever happens from now on belongs to none.
void um_device::outside_ops() noexcept {
  swap_events_.op = {step_, 0, 0, 0, 0};
  if (backend_.hooks != nullptr) backend_.hooks->set_context(backend_.ordinal, um::OpContexts::outside(step_));
}

// What the op is given, by kind of memory.
void um_device::gather(RunningOp& op, const um_access* accesses, uint32_t count) {
  operands_.clear();
  bool small = false;  // chunked memory that never leaves
  for (uint32_t i = 0; i < count; ++i) operands_.push_back(own_block(accesses[i].address));
  for (const bool write : {false, true}) {  // what is read comes first
    for (uint32_t i = 0; i < count; ++i) {
      um::Block* block = operands_[i];
      if ((accesses[i].write != 0) != write || block == nullptr) continue;
      block->record.seen = true;
      if (block->record.workspace) set_workspace(block, false);  // a tensor's after all
      if (block->swapped != nullptr) {
        block->swapped->in_reach = false;
        op.swapped.push_back({block->swapped, write});
      } else {
        small |= block->arena->heap->placement.memory == UM_MEMORY_CHUNKED;
      }
      if (!um::managed(*block)) continue;
      const uint64_t at = um::address_of(accesses[i].address);  // no further than its allocation
      op.working_set.add(at, std::min(accesses[i].bytes, block->end() - at), write);
    }
  }
  operands_.erase(std::remove(operands_.begin(), operands_.end(), nullptr), operands_.end());
  if (small) swapper_->follow(op.stream);
}

bool um_device::touch(const RunningOp& op) const {
  bool serviced = false;
  for (const um_access& access : op.working_set.accesses()) {
    serviced |=
        backend_.hooks->touch(backend_.ordinal, um::address_of(access.address), access.bytes, access.write != 0);
  }
  return serviced;
}

// Something came onto the device for the op, and may have evicted what the op needs too: eviction follows the order of
// service (uvm/uvm_pmm_gpu.c), and an old page may be next in line. So the working set is touched in order until a pass
// finds everything in place. A set that is larger than the device never settles and is left to its faults.
void um_device::settle(const RunningOp& op) {
  if (op.working_set.bytes_if_above(backend_.total_bytes) <= backend_.total_bytes) {
    for (int pass = 0; pass < um::WorkingSet::kMostPasses && touch(op); ++pass) {
    }
  }
  const Lock lock(mutex_);
  sample_residency();
}

void um_device::end_op(const void* const* outputs, uint32_t count) noexcept {
  RunningOp* op = um::running_op;
  if (op == nullptr || op->device != this) return;
  um::running_op = nullptr;
  const int64_t end_ns = op->recorded != 0 ? um::now_ns() : 0;
  const Lock lock(mutex_);
  running_ops_.erase(std::find(running_ops_.begin(), running_ops_.end(), op));
  if (allocations_ != nullptr) {
    time_end(*op);
    sample_end(*op);
    for (uint32_t i = 0; i < count; ++i) {
      if (um::Block* block = own_block(outputs[i])) block->record.seen = true;
    }
    if (backend_.hooks == nullptr) keep_workspaces(*op);
    report_oversized(*op);
    collect_device_events();
    if (backend_.hooks != nullptr) {
      if (backend_.counting == UM_COUNTING_RAW) sample_residency();
      backend_.hooks->set_context(backend_.ordinal, um::OpContexts::outside(step_));
    }
    record_end(*op, end_ns, outputs, count);
    if (swapper_ != nullptr) let_go(*op);
    if (program_ != nullptr) finish_op(*op);
  }
  swap_events_.op = {step_, 0, 0, 0, 0};
  op_pool_.give(op);
}

// What managed memory may take of the device.
uint64_t um_device::managed_limit_bytes() const {
  const uint64_t left = backend_.total_bytes - std::min(backend_.total_bytes, allocations_->plain_bytes());
  return budget_ != nullptr ? std::min(left, budget_->bytes()) : left;
}

void um_device::measure(RunningOp& op) const {
  op.most_bytes = std::max(op.most_bytes, op.working_set.bytes_if_above(managed_limit_bytes()));
}

void um_device::report_oversized(const RunningOp& op) noexcept {
  if (op.most_bytes <= managed_limit_bytes()) return;
  ++oversized_ops_;
  if (!recording_) return;
  um_event event{};
  event.start_ns = um::now_ns();
  event.bytes = op.most_bytes;
  um::tell_of(op.identity, &event);
  event.kind = UM_EVENT_OVERSIZED_OP;
  events_.push(event);
}

void um_device::set_step(uint32_t step) {
  const Lock lock = lock_alive();
  if (tape_.on()) collect_device_events();  // what was served until now is of the step before
  end_sampled_step();
  if (durations_.count() > kMostUnsettled) settle_durations();
  if (program_ != nullptr) follow_step(step);
  step_ = step;
  step_ops_ = 0;
  tape_.set_step(step);
  outside_ops();
  begin_sampled_step(step);
}

void um_device::set_budget(uint64_t budget_bytes) {
  const Lock lock = lock_alive();
  if (budget_bytes == 0) {
    budget_.reset();
    allocations_->set_room(backend_.total_bytes);
    return;
  }
  if (budget_bytes < 2 * um::kBlockBytes) {
    throw Error(UM_INVALID_ARGUMENT, "a budget of " + um::in_words(budget_bytes) +
                                         " is below two blocks of 2 MiB: give at least " +
                                         um::in_words(2 * um::kBlockBytes));
  }
  if (const char* reason = backend_.why_no_migration())
    throw Error(UM_UNSUPPORTED, std::string("no budget can be kept: ") + reason);
  const uint64_t kept_bytes = std::min(budget_bytes, most_budget_bytes());
  // Managed memory cannot be more than host and device hold; arenas may be part empty, hence twice that.
  const uint64_t most_bytes = 2 * (backend_.total_host_bytes() + backend_.total_bytes);
  auto budget = std::make_unique<um::Budget>(kept_bytes, static_cast<uint32_t>(most_bytes / um::kBlockBytes));
  seed(*budget);
  budget_ = std::move(budget);
  allocations_->set_room(kept_bytes);
}

// Others work on a GPU too: what the driver says is free, and what managed memory has of it, is all that there is.
uint64_t um_device::most_budget_bytes() const {
  if (backend_.hooks != nullptr) return backend_.total_bytes;
  const um::RequiredContext current(backend_);
  size_t free_bytes = 0, total_bytes = 0;
  backend_.check(backend_.call().mem_get_info(&free_bytes, &total_bytes), "asking for free device memory");
  const uint64_t managed_bytes = allocations_->statistics.reserved_bytes.now - allocations_->plain_bytes();
  const uint64_t held_bytes = budget_ != nullptr ? std::min(budget_->resident_bytes(), managed_bytes) : managed_bytes;
  const uint64_t most_bytes = std::min<uint64_t>(backend_.total_bytes, free_bytes + held_bytes);
  if (most_bytes >= 2 * um::kBlockBytes) return most_bytes;
  throw Error(UM_OUT_OF_DEVICE_MEMORY, "no budget can be kept: the driver says that " + um::in_words(most_bytes) +
                                           " of the device's " + um::in_words(backend_.total_bytes) +
                                           " are free; two blocks of 2 MiB are needed. End another process");
}

// What is on the device now counts against a new budget; where nobody can tell (CUDA), all that is live.
void um_device::seed(um::Budget& budget) {
  budget.follow(*allocations_);
  for (const um::Arena* arena : allocations_->arenas_by_address()) {
    if (arena->heap->placement.memory != UM_MEMORY_MANAGED) continue;
    arena->each_block([&](const um::Block& block) {
      for (uint64_t page = block.address / um::kBlockBytes * um::kBlockBytes; page < block.end();
           page += um::kBlockBytes) {
        uint64_t on_device = 1, on_host = 0;
        if (backend_.hooks != nullptr) {
          backend_.hooks->residency(backend_.ordinal, page, um::kBlockBytes, &on_device, &on_host);
        }
        if (on_device != 0) budget.use(page, um::kBlockBytes, um::Budget::Use::to_device);
      }
      if (block.record.exports > 0 || block.record.workspace) budget.pin(block.address, block.record.bytes);
    });
  }
  const um::RequiredContext current(backend_);
  budget.enforce(backend_, nullptr);
}
