#include "memory/chunk_slots.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "memory/physical.h"

namespace um {

using driver::CUDA_SUCCESS;
using driver::CUdeviceptr;

uint64_t ChunkSlots::reserve(uint64_t bytes) {
  const uint64_t count = bytes / chunk_bytes_;
  auto slots = std::make_unique<Slot[]>(count);
  regions_.reserve(regions_.size() + 1);
  CUdeviceptr address = 0;
  backend_.check(backend_.call().mem_address_reserve(&address, bytes, kBlockBytes, 0, 0),
                 "reserving " + std::to_string(bytes) + " bytes of address space");
  for (uint64_t i = 0; i < count; ++i) slots[i].address = address + i * chunk_bytes_;
  const auto above = std::upper_bound(regions_.begin(), regions_.end(), address,
                                      [](uint64_t at, const Region& region) { return at < region.address; });
  regions_.insert(above, Region{address, bytes, std::move(slots)});
  return address;
}

const ChunkSlots::Region& ChunkSlots::region_of(uint64_t address) const {
  return *std::prev(std::upper_bound(regions_.begin(), regions_.end(), address,
                                     [](uint64_t at, const Region& region) { return at < region.address; }));
}

Slot* ChunkSlots::at(uint64_t address) const {
  const Region& region = region_of(address);
  return &region.slots[(address - region.address) / chunk_bytes_];
}

bool ChunkSlots::free(uint64_t address) noexcept {
  const Region& region = region_of(address);
  if (backend_.call().mem_address_free(region.address, region.bytes) != CUDA_SUCCESS) return false;
  regions_.erase(regions_.begin() + (&region - regions_.data()));
  return true;
}

void ChunkSlots::map(Slot& slot, ChunkPool::Chunk chunk, SlotState state) {
  backend_.check(backend_.call().mem_map(slot.address, chunk_bytes_, 0, chunk, 0), "mapping a chunk");
  slot.chunk = chunk;
  slot.state = state;
  slot.access = Access::none;
  slot.veiled = false;
}

bool ChunkSlots::unmap(Slot& slot) noexcept {
  if (backend_.call().mem_unmap(slot.address, chunk_bytes_) != CUDA_SUCCESS) return false;
  slot.chunk = 0;
  slot.state = SlotState::empty;
  slot.access = Access::none;
  slot.veiled = false;
  return true;
}

void ChunkSlots::allow(Slot* first, uint64_t count, Access access) {
  const driver::CUmemAccessDesc description{
      location_of(backend_, false),
      access == Access::write ? driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE : driver::CU_MEM_ACCESS_FLAGS_PROT_READ};
  const Slot* end = first + count;
  for (Slot* slot = first; slot != end;) {  // one call for each run of slots that have another access
    if (slot->access == access) {
      ++slot;
      continue;
    }
    Slot* behind = slot;
    while (behind != end && behind->access != access) ++behind;
    const auto bytes = static_cast<uint64_t>(behind - slot) * chunk_bytes_;
    backend_.check(backend_.call().mem_set_access(slot->address, bytes, &description, 1), "allowing access to chunks");
    for (; slot != behind; ++slot) slot->access = access;
  }
}

void ChunkSlots::veil(Slot* first, uint64_t count, bool veiled) {
  const Slot* end = first + count;
  for (Slot* slot = first; slot != end; ++slot) {
    if (slot->veiled == veiled) continue;
    if (!backend_.hooks->veil(backend_.ordinal, slot->address, chunk_bytes_, veiled)) {
      throw Error(UM_DRIVER_ERROR, "the kernel does not change who sees a chunk (vm.max_map_count?)");
    }
    slot->veiled = veiled;
  }
}

void ChunkSlots::cache(Slot& slot) noexcept {
  slot.state = SlotState::cached;
  slot.newer = nullptr;
  slot.older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = &slot;
  newest_ = &slot;
}

void ChunkSlots::claim(Slot& slot) noexcept {
  slot.state = SlotState::owned;
  (slot.older != nullptr ? slot.older->newer : oldest_) = slot.newer;
  (slot.newer != nullptr ? slot.newer->older : newest_) = slot.older;
}

}  // namespace um
