#include "engine/conversion.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/places.h"

namespace um {
namespace {

bool out_of_memory(const Error& error) {
  return error.status() == UM_OUT_OF_DEVICE_MEMORY || error.status() == UM_OUT_OF_HOST_MEMORY;
}

uint32_t memory_of(const Block& block) { return block.arena->heap->placement.memory; }

bool has_kind(const Block& block, uint32_t wanted) {
  return memory_of(block) == (wanted == UM_MEMORY_PREFER_DEVICE ? uint32_t{UM_MEMORY_DEVICE} : wanted);
}

// Returns the role of the arena: gradients lie with intermediates, and optimizer state with parameters.
um_role arena_of(uint32_t role) {
  if (role == UM_ROLE_GRADIENT || role == UM_ROLE_INTERMEDIATE) return UM_ROLE_INTERMEDIATE;
  return role == UM_ROLE_INPUT ? UM_ROLE_INPUT : UM_ROLE_PARAMETER;
}

// Returns whether the driver accepts the memory as host memory.
bool is_hosts(const Block& block, const Movable* movable) {
  return managed(block) || (movable != nullptr && movable->residence.range == nullptr);
}

uint64_t end_of_page(uint64_t address) { return (address / kBlockBytes + 1) * kBlockBytes; }

}  // namespace

// ---- all of them -----------------------------------------------------------------------------------------------

um_converted Conversion::convert(const um_conversion& to) {
  const RequiredContext current(base_.backend);
  base_.backend.finish_kernels(Wait::converted_after_kernels, "waiting for what uses memory that changes its kind");
  std::vector<Block*> wrong;
  base_.allocations->each_block([&](Block& block) {
    if (!has_kind(block, to.memory)) wrong.push_back(&block);
  });
  std::unordered_set<const Block*> fixed;  // a movable operand of an op is pinned instead
  for (const RunningOp* const op : base_.ops.running) fixed.insert(op->fixed.begin(), op->fixed.end());
  std::sort(wrong.begin(), wrong.end(),
            [](const Block* a, const Block* b) { return a->record.serial < b->record.serial; });
  um_converted done{};
  for (Block* const block : wrong) {
    const uint64_t bytes = block->record.bytes;
    const uint32_t arena = arena_of(block->record.role);
    const bool moved =
        fixed.count(block) == 0 && may_move(*block, to) && move(block, {to.memory, arena, to.advice[arena]});
    ++(moved ? done.moved : done.stayed);
    (moved ? done.moved_bytes : done.stayed_bytes) += bytes;
  }
  observation_.collect();
  for (const um_memory kind : {UM_MEMORY_MANAGED, UM_MEMORY_DEVICE}) static_cast<void>(base_.allocations->trim(kind));
  accounts_.sample_residency();
  return done;
}

bool Conversion::may_move(const Block& block, const um_conversion& to) const {
  const Notes& its = notes(block);
  if (its.exports > 0 || its.gave_way || its.workspace) return false;
  if (its.movable != nullptr)
    return its.movable->owner != nullptr && its.movable->pins == 0 && !its.movable->state.barred();
  if (its.owner == nullptr) return false;
  const uint32_t own = to.own_advice[arena_of(block.record.role)];
  return !managed(block) || (own >> block.arena->heap->placement.advice & 1) != 0;
}

// Returns false if memory is out, or if the owner no longer shows the address.
bool Conversion::move(Block* block, const um_placement& to) {
  try {
    if (to.memory == UM_MEMORY_CHUNKED && !swapping_.fits_small(block->record.bytes)) return to_movable(block);
    if (to.memory != UM_MEMORY_PREFER_DEVICE) return to_heap(block, to);
  } catch (const Error& error) {
    if (out_of_memory(error)) return false;
    throw;
  }
  const bool plain = move(block, {UM_MEMORY_DEVICE, to.role, UM_ADVICE_NONE});
  return plain || (!managed(*block) && move(block, {UM_MEMORY_MANAGED, to.role, to.advice}));
}

// ---- one of them -----------------------------------------------------------------------------------------------

bool Conversion::to_movable(Block* block) {
  Mover& mover = swapping_.mover();
  Movable* const made = mover.make_out(block->record.bytes);
  if (made == nullptr) return false;
  Block* const place = made->block;
  const OnError undo([&] { mover.free(made); });
  copy({0, block->record.bytes}, *place, made, *block, nullptr);
  if (!show(block, place->address)) {
    mover.free(made);
    return false;
  }
  made->owner = std::exchange(notes(*block).owner, nullptr);
  change_place(block, place);
  made->block = block;
  notes(*block).movable = made;
  base_.allocations->give(place);
  return true;
}

bool Conversion::to_heap(Block* block, const um_placement& to) {
  const uint64_t bytes = block->record.bytes;
  const bool pages = to.memory == UM_MEMORY_MANAGED;
  if (pages) sampling_.expect_managed();
  Block* const place = base_.allocations->take(bytes, to);
  const OnError undo([&] { base_.allocations->give(place); });
  Movable* const movable = notes(*block).movable;
  if (movable != nullptr) swapping_.mover().finish_arrival(movable);
  pages ? copy_to_pages(bytes, *place, *block, movable) : copy({0, bytes}, *place, nullptr, *block, movable);
  if (!show(block, place->address)) {
    base_.allocations->give(place);
    return false;
  }
  change_place(block, place);
  if (movable == nullptr) {
    base_.allocations->give(place);
    return true;
  }
  notes(*block).movable = nullptr;
  notes(*block).owner = std::exchange(movable->owner, nullptr);
  movable->block = place;
  swapping_.mover().free(movable);
  return true;
}

// Re-points the owner. Returns false, and forgets the owner, if it no longer shows the old address.
bool Conversion::show(Block* block, uint64_t address) noexcept {
  Movable* const movable = notes(*block).movable;
  void** const owner = movable != nullptr ? &movable->owner : &notes(*block).owner;
  if (base_.owners.repoint(*owner, block->address, address)) return true;
  base_.owners.forget(std::exchange(*owner, nullptr));
  return false;
}

// Afterwards the block lies where `place` did, and `place` where the block did.
void Conversion::change_place(Block* block, Block* place) noexcept {
  const bool followed = swaps_.residency != nullptr;
  if (followed) observation_.freed(block);
  park(place);
  exchange_places(block, place);
  claim(place);
  base_.allocations->moved(*block);
  if (followed) observation_.allocated(block, nullptr);
}

// Copies in pieces if the allocation exceeds the share of managed memory, because a copy pages in what it writes. Each
// page then evicts an earlier one. Example: 6 MiB within a share of 4 MiB take three copies, and 4 MiB at most.
void Conversion::copy_to_pages(uint64_t bytes, const Block& to, const Block& from, const Movable* movable_from) {
  const uint64_t first = to.address / kBlockBytes * kBlockBytes, end = to.address + bytes;
  const bool fits = end - first <= budget_.managed_limit_bytes() / kBlockBytes * kBlockBytes;
  for (uint64_t at = to.address; at < end;) {
    const uint64_t piece_bytes = (fits ? end : std::min(end, end_of_page(at))) - at;
    budget_.use(at, piece_bytes, Budget::Use::write);
    copy({at - to.address, piece_bytes}, to, nullptr, from, movable_from);
    at += piece_bytes;
  }
}

// The driver accepts managed memory on either side of copies between host and device.
void Conversion::copy(Piece piece, const Block& to, const Movable* movable_to, const Block& from,
                      const Movable* movable_from) {
  const Backend& backend = base_.backend;
  const uint64_t bytes = piece.bytes, to_address = to.address + piece.offset_bytes;
  const uint64_t from_address = from.address + piece.offset_bytes;
  void* const host_to = reinterpret_cast<void*>(to_address);
  const void* const host_from = reinterpret_cast<const void*>(from_address);
  const auto wait = [&] {
    if (!left_out(Wait::converted)) backend.check(backend.call().stream_synchronize(nullptr), "copying");
  };
  const auto check = [&](driver::CUresult result) { backend.check(result, "copying to another kind of memory"); };
  if (is_hosts(from, movable_from)) {
    managed(from) && is_hosts(to, movable_to)
        ? check(backend.call().memcpy_dtoh_async(host_to, from_address, bytes, nullptr))
        : check(backend.call().memcpy_htod_async(to_address, host_from, bytes, nullptr));
  } else if (is_hosts(to, movable_to)) {
    check(backend.call().memcpy_dtoh_async(host_to, from_address, bytes, nullptr));
  } else {  // between plain memory and small allocations of chunks
    std::vector<char> through(bytes);
    check(backend.call().memcpy_dtoh_async(through.data(), from_address, bytes, nullptr));
    wait();
    check(backend.call().memcpy_htod_async(to_address, through.data(), bytes, nullptr));
    return wait();
  }
  wait();
}

}  // namespace um
