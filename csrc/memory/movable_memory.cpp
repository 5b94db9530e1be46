#include "memory/movable_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/features.h"
#include "memory/host_memory.h"
#include "memory/physical.h"
#include "memory/places.h"

namespace um {

using driver::CUDA_SUCCESS;
using driver::CUstream;

namespace {

constexpr uint64_t kAddressBytes = uint64_t{1} << 30;

// Small chunks waste little at the end of an allocation. They need more mapping calls, but a chunk is mapped only once
// for each of its ranges (docs/decisions/storages-that-move.md).
constexpr uint64_t kDefaultChunkBytes = uint64_t{2} << 20;

uint64_t checked_chunk_bytes(const Backend& backend, const um_chunk_options& options) {
  const std::string reason = why_not(backend, Feature::chunks);
  if (!reason.empty()) throw Error(UM_UNSUPPORTED, "explicit swapping is not possible: " + reason);
  size_t granularity = 0;
  const driver::CUmemAllocationProp properties = physical_properties(backend);
  backend.check(backend.call().mem_get_allocation_granularity(&granularity, &properties,
                                                              driver::CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                "asking for the granularity of physical memory");
  const uint64_t unit = std::max<uint64_t>(kBlockBytes, granularity);  // both are powers of two
  if (options.chunk_bytes == 0) return std::max(kDefaultChunkBytes, unit);
  if (options.chunk_bytes % unit == 0) return options.chunk_bytes;
  throw Error(UM_INVALID_ARGUMENT, "chunks of " + std::to_string(options.chunk_bytes) +
                                       " bytes: expected a multiple of " + in_words(unit) + ", or 0 for the default");
}

}  // namespace

// ---- addresses -----------------------------------------------------------------------------------------------

ArenaSource::Range MovableMemory::Addresses::acquire(uint64_t least_bytes, uint64_t wanted_bytes) {
  const RequiredContext current(backend_);
  driver::CUdeviceptr address = 0;
  uint64_t bytes = wanted_bytes;
  if (backend_.call().mem_address_reserve(&address, bytes, kBlockBytes, 0, 0) != CUDA_SUCCESS) {
    bytes = least_bytes;
    backend_.check(backend_.call().mem_address_reserve(&address, bytes, kBlockBytes, 0, 0),
                   "reserving " + std::to_string(bytes) + " bytes of address space");
  }
  return {address, bytes};
}

bool MovableMemory::Addresses::release(Range range) noexcept {
  const CurrentContext current(backend_);
  return current.result() == CUDA_SUCCESS &&
         backend_.call().mem_address_free(range.address, range.bytes) == CUDA_SUCCESS;
}

MovableMemory::MovableMemory(um_device* device, const Backend& backend, Fences& fences, StablePool<Block>& blocks,
                             const um_chunk_options& options)
    : chunk_bytes_(checked_chunk_bytes(backend, options)),
      least_leaving_bytes_(options.small == UM_SMALL_LEAVE ? 0 : kLeastLeavingBytes),
      addresses_(backend),
      rooms_(device, kInternalPlacement, addresses_, blocks, chunks_of(kAddressBytes) * chunk_bytes_, chunk_bytes_),
      ranges(backend, fences, rooms_, chunk_bytes_, whole_chunks(options.budget_bytes)),
      shared(ranges, layout, fences, chunk_bytes_),
      reserved(ranges, rooms_, fences, chunk_bytes_),
      copies(device, backend, fences, blocks, options.host_budget_bytes) {}

uint64_t MovableMemory::whole_chunks(uint64_t budget_bytes) const {
  if (budget_bytes >= chunk_bytes_) return budget_bytes / chunk_bytes_;
  throw Error(UM_INVALID_ARGUMENT, "a budget of " + in_words(budget_bytes) + " is below one chunk of " +
                                       in_words(chunk_bytes_) + ": give it more, or make the chunks smaller");
}

bool MovableMemory::give_back() noexcept {
  const bool device = reserved.sweep(true) && ranges.give_back();
  const bool host = copies.give_back();
  return rooms_.trim() && device && host;
}

// ---- places on the device -------------------------------------------------------------------------------------

ChunkRange* MovableMemory::take(uint64_t bytes, CUstream first_user, int32_t storage, uint64_t wanted_unit) {
  return shares(bytes) ? shared.take(bytes, first_user, storage, wanted_unit)
                       : layout.take(chunks_of(bytes), first_user, storage);
}

// Returns the unit of a shared chunk in which the allocation's address for life lies, if the allocation returns to it.
uint64_t MovableMemory::wanted_unit(const Residence& residence, uint64_t bytes) const {
  const bool returns = residence.reserved != nullptr && residence.reserved->returns && shares(bytes);
  return returns ? shared.unit_of(residence.reserved->offset_bytes) : SharedChunks::kAnyUnit;
}

void MovableMemory::give(ChunkRange* range, Fences::Fence last_use) noexcept {
  range->shared != nullptr ? shared.give(range, last_use) : layout.give(range, last_use);
}

// ---- allocations ---------------------------------------------------------------------------------------------

Block* MovableMemory::make_on_device(uint64_t bytes, CUstream first_user, Residence* residence, int32_t storage) {
  ChunkRange* const range = take(bytes, first_user, storage, SharedChunks::kAnyUnit);
  if (range == nullptr) return nullptr;
  Block* const block = range->room;
  range->room = nullptr;
  claim(block);
  *residence = {range, nullptr};
  return block;
}

Block* MovableMemory::make_on_host(uint64_t bytes, Residence* residence, const CUstream* user) {
  Block* const block = copies.take(bytes, user);
  if (block == nullptr) return nullptr;
  claim(block);
  *residence = {};
  return block;
}

void MovableMemory::free(Block* block, Residence* residence, Fences::Fence last_use) noexcept {
  drop_copy(residence, last_use);
  ReservedAddress* const reserved_address = std::exchange(residence->reserved, nullptr);
  if (residence->range == nullptr) {
    copies.give(block, last_use);
  } else {
    park(block);
    const bool there = reserved_address != nullptr && reserved_address->mapped();
    (there ? reserved_address->range.room : residence->range->room) = block;
    residence->range->handed_out = false;
    give(residence->range, last_use);
    residence->range = nullptr;
  }
  if (reserved_address != nullptr) reserved.release(reserved_address, last_use);
}

// ---- moves ---------------------------------------------------------------------------------------------------

bool MovableMemory::to_device(Block* block, Residence* residence, CUstream first_user) {
  const uint64_t bytes = block->record.bytes;
  ChunkRange* const range = take(bytes, first_user, block->record.storage, wanted_unit(*residence, bytes));
  if (range == nullptr) return false;
  exchange_places(block, range->room);
  residence->range = range;
  residence->copy = range->room;
  range->room = nullptr;
  ReservedAddress* const its = residence->reserved;
  if (its == nullptr || !std::exchange(its->returns, false)) return true;
  try {
    static_cast<void>(to_reserved(block, residence));
    // Nothing more can be mapped: the allocation lies elsewhere, and its reserved address shows nothing.
  } catch (const Error&) {
    return true;
  }
  return true;
}

void MovableMemory::to_host(Block* block, Residence* residence, Fences::Fence last_use) noexcept {
  from_reserved(block, residence);
  ChunkRange* const range = residence->range;
  const uint64_t offset_bytes = block->address - range->address;
  exchange_places(block, residence->copy);
  range->room = residence->copy;
  const bool handed_out = range->handed_out;
  give(range, last_use);  // ends the range if it is beyond the budget and was not handed out
  residence->range = nullptr;
  residence->copy = nullptr;
  if (!handed_out) return;
  residence->reserved = reserved.keep(block, range, offset_bytes);
  if (residence->reserved != nullptr) residence->reserved->returns = true;
}

// ---- addresses that code outside of ops has -------------------------------------------------------------------

uint64_t MovableMemory::reserve(Block* block, Residence* residence) {
  if (residence->reserved != nullptr) return residence->reserved->address();
  if (residence->range != nullptr && residence->range->handed_out) return block->address;
  const uint64_t offset_bytes = residence->range != nullptr ? block->address - residence->range->address : 0;
  residence->reserved = reserved.reserve(block, chunks_of(block->record.bytes), offset_bytes);
  return residence->reserved->address();
}

bool MovableMemory::to_reserved(Block* block, Residence* residence) {
  ReservedAddress* const its = residence->reserved;
  ChunkRange* const range = residence->range;
  if (its->mapped()) return true;
  if (!fits_reserved(*block, *residence)) return false;
  reserved.map(its, range->chunks, range->shown);
  its->range.room->address = its->address();
  its->range.room->bytes = block->bytes;
  exchange_places(block, its->range.room);
  range->room = std::exchange(its->range.room, nullptr);
  return true;
}

void MovableMemory::from_reserved(Block* block, Residence* residence) noexcept {
  ReservedAddress* const its = residence->reserved;
  if (its == nullptr || !its->mapped()) return;
  exchange_places(block, residence->range->room);
  reserved.unmap(its, std::exchange(residence->range->room, nullptr));
}

bool MovableMemory::add_copy(const Block& block, Residence* residence, CUstream user) {
  residence->copy = copies.take(block.record.bytes, &user);
  return residence->copy != nullptr;
}

void MovableMemory::drop_copy(Residence* residence, Fences::Fence last_use) noexcept {
  if (residence->copy != nullptr) copies.give(residence->copy, last_use);
  residence->copy = nullptr;
}

}  // namespace um
