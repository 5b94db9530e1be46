// Allocates, frees, finds, labels and lists the allocations of a device.
#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/migration.h"
#include "memory/process.h"
#include "memory/room.h"

using um::address_of;
using um::Block;
using um::Error;
using um::RunningOp;

namespace {

// Counts each request that failed for lack of memory.
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

// Attributes the time of an allocation, evictions and mapping included, to the guard, and not to the op in which it
// happens or to the script.
class GuardsTurn {
 public:
  GuardsTurn(um::Times& times, um::RunningOp* op) : times_(times), op_(op), before_(times.kind()) {
    const int64_t passed_ns = times_.turn(UM_TIME_GUARD);
    if (op_ != nullptr) op_->compute_ns += passed_ns;
  }
  ~GuardsTurn() { times_.turn(before_); }
  GuardsTurn(const GuardsTurn&) = delete;
  GuardsTurn& operator=(const GuardsTurn&) = delete;

 private:
  um::Times& times_;
  um::RunningOp* const op_;
  const um_time before_;
};

}  // namespace

void* um_device::allocate(uint64_t bytes, const um_placement& placement, void* stream, Use use) {
  if (bytes == 0) return nullptr;
  RunningOp* const op = own_op();
  const auto user = static_cast<um::driver::CUstream>(stream);
  uint64_t address = 0;
  bool managed = false;
  {
    const Locked locked = lock();
    if (!accepts_) throw Error(UM_BAD_STATE, "the device is closed: it takes no new allocations");
    streams.note(user);
    const GuardsTurn turn(times, op);
    const um::OpPause pause(recording.durations, op, um::op_stream);
    const uint64_t arena_changes = allocations->arena_changes();
    if (op != nullptr) um::make_room(op->fixed, op->fixed.size() + 1);
    Block* const block = counting_failures(&allocations->statistics, [&] {
      um::device_lock.assert_held();
      const um::Birth birth = ops.birth(op);
      return placement.memory == UM_MEMORY_CHUNKED
                 ? swapping.allocate(bytes, placement, birth, op, user, use == Use::outside_ops)
                 : allocate_preferred(bytes, placement, birth);
    });
    address = block->address;
    managed = um::managed(*block);
    if (op != nullptr && um::notes(*block).movable == nullptr) op->fixed.push_back(block);
    if (managed && (op != nullptr || placement.advice == UM_ADVICE_PREFETCH)) {
      const um::OnError undo([&] {
        um::device_lock.assert_held();
        if (op != nullptr) op->working_set.remove(address);
        give_back(block);
      });
      place(block, op, stream);
    }
    for (um::Participant* const each : participants.at_memory()) each->allocated(block, op);
    if (arena_changes != allocations->arena_changes()) accounts.sample_residency();
  }
  // In ordered counting, outputs are touched here in order of allocation, and not by the kernel's threads in any order.
  // If the touch moved pages, or there was a prefetch, operands of the op may have been evicted.
  if (managed && op != nullptr && !op->untouched && backend.ordered()) {
    const bool serviced = backend.hooks->touch(backend.ordinal, address, bytes, true);
    if (serviced || placement.advice == UM_ADVICE_PREFETCH) guard.make_resident(*op);
  }
  return reinterpret_cast<void*>(address);
}

// Resolves UM_MEMORY_PREFER_DEVICE, which is a preference and not a kind of memory.
Block* um_device::allocate_preferred(uint64_t bytes, um_placement placement, const um::Birth& birth) {
  if (placement.memory == UM_MEMORY_PREFER_DEVICE) {
    placement.memory = UM_MEMORY_DEVICE;
    if (bytes < refused_bytes_) {  // do not ask a full device again for each small tensor
      try {
        return allocations->allocate(bytes, placement, birth);
      } catch (const Error& error) {
        if (error.status() != UM_OUT_OF_DEVICE_MEMORY) throw;
      }
      refused_bytes_ = bytes;
    }
    placement.memory = UM_MEMORY_MANAGED;
  }
  if (placement.memory == UM_MEMORY_MANAGED) sampling.expect_managed();
  return allocations->allocate(bytes, placement, birth);
}

// Prepares a new managed block for its first use.
void um_device::place(Block* block, RunningOp* op, void* stream) {
  const auto user = static_cast<um::driver::CUstream>(stream);
  const bool prefetched = block->arena->heap->placement.advice == UM_ADVICE_PREFETCH &&
                          backend.why_no_migration() == nullptr && !budget.holds(*block);
  if (op != nullptr && !op->untouched) {
    op->working_set.add(block->address, block->record.bytes, true);
    budget.measure(*op);
    budget.check(*op);
    budget.end_exports_for(*op);
    budget.keep([&](um::Budget& model) { model.use_newest(op->working_set); }, op->stream, op->identity);
  } else if (prefetched) {
    budget.use(block->address, block->record.bytes, um::Budget::Use::to_device, user);
  }
  if (prefetched) {
    const um::RequiredContext current(backend);
    um::prefetch(backend, block->address, block->record.bytes, false, user);
    accounts.sample_residency();
  }
}

um_device::Found um_device::find(uint64_t address, bool at_start) {
  Found found;
  um::Arena* arena = um::address_map().find(address);
  found.device = arena != nullptr ? arena->device.load(std::memory_order_relaxed) : nullptr;
  if (found.device == nullptr) return found;
  found.lock = Lock(found.device->mutex);
  // The arena may have been closed, and reopened by another device, before this thread had the lock.
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

void um_device::release(Block* block) noexcept {
  for (um::Participant* const each : participants.at_memory()) each->freed(block);
  const um::Notes& notes = um::notes(*block);
  if (notes.exports > 0) exports.forget(*block);
  if (notes.owner != nullptr) block_owners.forget(block);
  if (notes.workspace) budget.set_workspace(block, false);
  if (notes.discarded) streams.discard(*block);
  if (block->arena->heap->placement.memory == UM_MEMORY_DEVICE) refused_bytes_ = kNothingRefused;
  if (RunningOp* const op = own_op()) op->working_set.remove(block->address);
  give_back(block);
  if (accepts_) return;
  budget.drop_if_idle();
  if (allocations->statistics.live_allocations() == 0) static_cast<void>(empty_out());
}

void um_device::give_back(Block* block) noexcept {
  um::notes(*block).movable != nullptr ? swapping.end(block) : allocations->free(block);
}

void um_device::trim() {
  observation.collect();                   // events in the ring are about the allocations until now
  static_cast<void>(allocations->trim());  // the next trim tries again what the driver refused
}

bool um_device::owns(const void* address) noexcept { return um::address_map().find(address_of(address)) != nullptr; }

um_allocation um_device::describe(const Block& block) {
  const um::Record& record = block.record;
  const um_placement& placement = block.arena->heap->placement;
  const um::Notes& notes = um::notes(block);
  const uint32_t exported = notes.exports + (notes.gave_way ? 1 : 0);
  // Its size on the device, even if it lies elsewhere.
  const uint64_t reserved_bytes = notes.movable != nullptr ? swapping.device_bytes(block) : block.bytes;
  const void* const owner = notes.movable != nullptr ? notes.movable->owner : notes.owner;
  return {record.serial,   block.address,       record.bytes, reserved_bytes,    placement.memory,
          record.role,     placement.advice,    record.name,  record.birth_step, record.birth_op_index,
          record.birth_op, record.birth_module, notes.seen,   exported,          this,
          owner != nullptr};
}

void um_device::describe(const void* address, um_allocation* out) {
  const Found found = find_range(address, 0);
  *out = found.device->describe(*found.block);
}

void um_device::label(const void* address, uint32_t role, uint32_t name) {
  const Found found = find_range(address, 0);
  const um::Record& record = found.block->record;
  const uint32_t role_before = record.role, name_before = record.name;
  found.device->allocations->label(found.block, role, name);
  if (record.role == role_before && record.name == name_before) return;
  for (um::Participant* const each : found.device->participants.at_memory()) each->labelled(*found.block);
  found.device->observation.tell_label(*found.block);
}

uint64_t um_device::list(um_allocation* out, uint64_t capacity) {
  uint64_t count = 0;
  for (const um::Arena* arena : allocations->arenas_by_address()) {
    arena->each_block([&](const Block& block) {
      um::device_lock.assert_held();
      if (count < capacity) out[count] = describe(block);
      ++count;
    });
  }
  return count;
}
