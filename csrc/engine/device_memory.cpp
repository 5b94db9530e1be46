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
  um::MemoryKind::Request request{
      bytes, placement, {}, own_op(), static_cast<um::driver::CUstream>(stream), use == Use::outside_ops};
  RunningOp* const op = request.op;
  // The heap of plain memory rejects an unknown kind.
  const uint32_t wanted = placement.memory <= UM_MEMORY_CHUNKED ? placement.memory : uint32_t{UM_MEMORY_DEVICE};
  um::MemoryKind* kind = kinds[wanted];
  uint64_t address = 0;
  {
    const Locked locked = lock();
    if (!accepts_) throw Error(UM_BAD_STATE, "the device is closed: it takes no new allocations");
    streams.note(request.stream);
    const GuardsTurn turn(times, op);
    const um::OpPause pause(recording.durations, op, um::op_stream);
    const uint64_t arena_changes = allocations->arena_changes();
    if (op != nullptr) um::make_room(op->fixed, op->fixed.size() + 1);
    request.birth = ops.birth(op);
    Block* const block = counting_failures(&allocations->statistics, [&] {
      um::device_lock.assert_held();
      return kind->make(request);
    });
    address = block->address;
    kind = &kind_of(*block);
    const um::OnError undo([&] {
      um::device_lock.assert_held();
      kind->free(block);
    });
    kind->place(block, request);
    for (um::Participant* const each : participants.at_memory()) each->allocated(block, op);
    if (arena_changes != allocations->arena_changes()) accounts.sample_residency();
  }
  if (op != nullptr && kind->touch(address, request)) guard.make_resident(*op);
  return reinterpret_cast<void*>(address);
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
  kind_of(*block).free(block);
  if (accepts_) return;
  budget.drop_if_idle();
  if (allocations->statistics.live_allocations() == 0) static_cast<void>(empty_out());
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
