// Allocations of a device: making, freeing, finding, labelling, listing.
#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/migration.h"
#include "memory/process.h"

using um::address_of;
using um::Block;
using um::Error;
using um::RunningOp;

namespace {

// Once for each request that nothing could be found for.
template <class Allocate>
Block* counting_failures(um::Statistics* statistics, const Allocate& allocate) {
  try {
    return allocate();
  } catch (const Error& error) {
    if (error.status() == UM_OUT_OF_DEVICE_MEMORY || error.status() == UM_OUT_OF_HOST_MEMORY)
      ++statistics->failure_count;
    throw;
  }
}

}  // namespace

void* um_device::allocate(uint64_t bytes, const um_placement& placement, void* stream, Use use) {
  if (bytes == 0) return nullptr;
  RunningOp* op = um::running_op != nullptr && um::running_op->device == this ? um::running_op : nullptr;
  uint64_t address = 0;
  bool managed = false;
  {
    const Lock lock(mutex_);
    if (!accepts_) throw Error(UM_BAD_STATE, "the device is closed: it takes no new allocations");
    note_stream(static_cast<um::driver::CUstream>(stream));
    const um::Birth birth = op != nullptr
                                ? um::Birth{op->identity.step, op->identity.index, op->identity.op, op->identity.module}
                                : um::Birth{step_, 0, 0, 0};
    if (placement.memory == UM_MEMORY_CHUNKED && swapper_ != nullptr) {
      swapper_->follow(static_cast<um::driver::CUstream>(stream));
      if (op != nullptr && bytes <= chunked_->most_small_bytes()) swapper_->follow(op->stream);
    }
    const um::OpPause pause(durations_, backend_, op != nullptr ? op->timed : 0, um::op_stream);
    const uint64_t arena_changes = allocations_->arena_changes();
    Block* block =
        counting_failures(&allocations_->statistics, [&] { return allocate_evicting(bytes, placement, birth); });
    if (program_ != nullptr) program_->allocated(block);
    if (residency_ != nullptr) {
      collect_device_events();  // arenas may have gone and come: the block counts from here on
      residency_->add(block);
    }
    address = block->address;
    managed = um::managed(*block);
    if (block->arena->heap->placement.memory == UM_MEMORY_CHUNKED && bytes > chunked_->most_small_bytes()) {
      make_chunked(block, op, static_cast<um::driver::CUstream>(stream), use);
    }
    if (managed && (op != nullptr || placement.advice == UM_ADVICE_PREFETCH)) {
      const um::OnError undo([&] {
        if (op != nullptr) op->working_set.remove(address);
        forget(block);
      });
      place(block, op, stream);
    }
    tape_.allocated(*block, op != nullptr);
    if (arena_changes != allocations_->arena_changes()) sample_residency();
  }
  // Outputs are touched here, in order of allocation, not by the kernel's threads in any order. A touch that had to
  // move pages, or a prefetch, may have evicted what the op was given.
  if (managed && op != nullptr && !op->untouched && backend_.ordered()) {
    const bool serviced = backend_.hooks->touch(backend_.ordinal, address, bytes, true);
    if (serviced || placement.advice == UM_ADVICE_PREFETCH) settle(*op);
  }
  return reinterpret_cast<void*>(address);
}

// UM_MEMORY_PREFER_DEVICE is a wish, not a kind of memory: it ends here.
Block* um_device::allocate_preferred(uint64_t bytes, um_placement placement, const um::Birth& birth) {
  if (placement.memory == UM_MEMORY_MANAGED) sample_faults();
  if (placement.memory != UM_MEMORY_PREFER_DEVICE) return allocations_->allocate(bytes, placement, birth);
  if (bytes < refused_bytes_) {  // a full device is not asked again for each small tensor
    placement.memory = UM_MEMORY_DEVICE;
    try {
      return allocations_->allocate(bytes, placement, birth);
    } catch (const Error& error) {
      if (error.status() != UM_OUT_OF_DEVICE_MEMORY) throw;
    }
    refused_bytes_ = bytes;
  }
  placement.memory = UM_MEMORY_MANAGED;
  sample_faults();
  return allocations_->allocate(bytes, placement, birth);
}

// What a new managed block needs before anybody uses it.
void um_device::place(Block* block, RunningOp* op, void* stream) {
  const bool prefetched = block->arena->heap->placement.advice == UM_ADVICE_PREFETCH &&
                          backend_.why_no_migration() == nullptr &&
                          (budget_ == nullptr || !budget_->holds(block->address, block->record.bytes));
  const bool touched = op != nullptr && !op->untouched;
  if (touched) {
    op->working_set.add(block->address, block->record.bytes, true);
    measure(*op);
    keep_budget([&](um::Budget& budget) { budget.use_newest(op->working_set); }, op->stream);
  } else if (prefetched) {
    keep_budget(
        [&](um::Budget& budget) { budget.use(block->address, block->record.bytes, um::Budget::Use::to_device); },
        static_cast<um::driver::CUstream>(stream));
  }
  if (prefetched) {
    const um::RequiredContext current(backend_);
    um::prefetch(backend_, block->address, block->record.bytes, false, static_cast<um::driver::CUstream>(stream));
    sample_residency();
  }
}

um_device::Found um_device::find(uint64_t address, bool at_start) {
  Found found;
  um::Arena* arena = um::address_map().find(address);
  found.device = arena != nullptr ? arena->device.load(std::memory_order_relaxed) : nullptr;
  if (found.device == nullptr) return found;
  found.lock = Lock(found.device->mutex_);
  // The arena may have been closed, and opened by another device, before the lock was there.
  if (um::address_map().find(address) == arena && arena->device.load(std::memory_order_relaxed) == found.device) {
    found.block = at_start ? arena->starting_at(address) : arena->containing(address);
  }
  return found;
}

um_device::Found um_device::find_range(const void* address, uint64_t bytes) {
  Found found = find(address_of(address), false);
  if (found.block == nullptr) {
    throw Error(UM_INVALID_ARGUMENT,
                "no allocation of umadvise contains address " + std::to_string(address_of(address)));
  }
  const um::Record& record = found.block->record;
  if (bytes >
      found.block->address + record.bytes - std::min(address_of(address), found.block->address + record.bytes)) {
    throw Error(UM_INVALID_ARGUMENT, std::to_string(bytes) + " bytes from offset " +
                                         std::to_string(address_of(address) - found.block->address) +
                                         " on do not lie within the allocation of " + std::to_string(record.bytes) +
                                         " bytes");
  }
  return found;
}

bool um_device::free(void* pointer) noexcept {
  if (um::process::over()) return owns(pointer);
  const Found found = find(address_of(pointer), true);
  if (found.block == nullptr) return false;
  found.device->release(found.block);
  return true;
}

void um_device::forget(Block* block) noexcept {
  if (residency_ != nullptr) residency_->remove(block);
  if (program_ != nullptr) program_->freed(block);
  allocations_->free(block);
}

void um_device::release(Block* block) noexcept {
  if (recording_) collect_device_events();  // while they can still be told which allocation they are about
  if (block->record.exports > 0 && um::managed(*block)) {
    backend_.hooks->unpin(backend_.ordinal, block->address, block->record.bytes);
    if (budget_ != nullptr) budget_->unpin(block->address, block->record.bytes);
  }
  if (block->arena->heap->placement.memory == UM_MEMORY_DEVICE) refused_bytes_ = kNothingRefused;
  const bool inside = um::running_op != nullptr && um::running_op->device == this;
  if (inside) um::running_op->working_set.remove(block->address);
  tape_.freed(*block, inside);
  if (block->record.workspace) set_workspace(block, false);
  if (block->record.discarded) discard_freed(*block);
  if (block->swapped != nullptr) detach(block);
  if (is_sampled()) sampling_->freed(*block);
  forget(block);
  if (accepts_) return;
  drop_idle_budget();
  if (allocations_->statistics.live_allocations() == 0) static_cast<void>(empty_out());
}

void um_device::trim() {
  const Lock lock = lock_alive();
  collect_device_events();                  // they are about what lies there until now
  static_cast<void>(allocations_->trim());  // what the driver refuses is tried again at the next opportunity
}

bool um_device::owns(const void* address) noexcept { return um::address_map().find(address_of(address)) != nullptr; }

um_allocation um_device::describe(const Block& block) {
  const um::Record& record = block.record;
  const um_placement& placement = block.arena->heap->placement;
  const uint32_t exports = record.exports + (record.gave_way ? 1 : 0);
  return {record.serial,   block.address,       record.bytes, block.bytes,       placement.memory,
          record.role,     placement.advice,    record.name,  record.birth_step, record.birth_op_index,
          record.birth_op, record.birth_module, record.seen,  exports,           this};
}

void um_device::describe(const void* address, um_allocation* out) {
  const Found found = find_range(address, 0);
  *out = found.device->describe(*found.block);
}

void um_device::label(const void* address, uint32_t role, uint32_t name) {
  const Found found = find_range(address, 0);
  found.device->relabel(found.block, role, name);
  found.device->tape_.labelled(*found.block);
}

void um_device::relabel(Block* block, uint32_t role, uint32_t name) {
  const um::Record& record = block->record;
  const uint32_t role_before = record.role, name_before = record.name;
  allocations_->label(block, role, name);
  if (record.role == role_before && record.name == name_before) return;
  if (residency_ != nullptr) residency_->relabelled(*block);
  if (!recording_) return;
  um_event event{};
  event.start_ns = um::now_ns();
  event.kind = UM_EVENT_LABEL;
  event.step = step_;
  um::tell_of(block->record, &event);
  events_.push(event);
}

uint64_t um_device::list(um_allocation* out, uint64_t capacity) {
  const Lock lock = lock_alive();
  uint64_t count = 0;
  for (const um::Arena* arena : allocations_->arenas_by_address()) {
    arena->each_block([&](const Block& block) {
      if (count < capacity) out[count] = describe(block);
      ++count;
    });
  }
  return count;
}
