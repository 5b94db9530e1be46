// Address space for large blocks, arenas for small ones, and their way back to the driver.
#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/chunked_memory.h"
#include "memory/host_memory.h"

namespace um {

using driver::CUDA_SUCCESS;

// Blocks come and go in any thread: arenas make the device's context current for themselves.

// A refusal leaves the rest as it is, for another attempt.
bool ChunkedMemory::clear_all(Slot* slots, uint64_t count) noexcept {
  try {
    for (Slot* slot = slots; slot != slots + count; ++slot) clear(*slot);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

ArenaSource::Range ChunkedMemory::AddressSpace::acquire(uint64_t least_bytes, uint64_t wanted_bytes) {
  const RequiredContext current(memory_.backend_);
  try {
    return {memory_.slots_.reserve(wanted_bytes), wanted_bytes};
  } catch (const Error&) {
    if (wanted_bytes == least_bytes) throw;
  }
  return {memory_.slots_.reserve(least_bytes), least_bytes};
}

bool ChunkedMemory::AddressSpace::release(Range range) noexcept {
  const CurrentContext current(memory_.backend_);
  return current.result() == CUDA_SUCCESS &&
         memory_.clear_all(memory_.slots_.at(range.address), range.bytes / memory_.chunk_bytes_) &&
         memory_.slots_.free(range.address);
}

// Where an arena can be mapped, best where one was. Throws um::Error.
Slot* ChunkedMemory::small_slot() {
  Slot* empty = nullptr;
  for (const uint64_t address : small_regions_) {
    Slot* slots = slots_.at(address);
    for (Slot* slot = slots; slot != slots + kSmallRegionSlots; ++slot) {
      if (slot->state == SlotState::cached) return slot;
      if (slot->state == SlotState::empty && empty == nullptr) empty = slot;
    }
  }
  if (empty != nullptr) return empty;
  small_regions_.reserve(small_regions_.size() + 1);
  small_regions_.push_back(slots_.reserve(kSmallRegionSlots * chunk_bytes_));
  return slots_.at(small_regions_.back());
}

ArenaSource::Range ChunkedMemory::SmallArenas::acquire(uint64_t, uint64_t) {
  const RequiredContext current(memory_.backend_);
  return {memory_.own_small()->address, memory_.chunk_bytes_};
}

Slot* ChunkedMemory::own_small() {
  const auto require = [&](bool there) {
    if (!there) {
      throw Error(UM_OUT_OF_DEVICE_MEMORY, "no chunk of " + in_words(chunk_bytes_) + " is left of the budget of " +
                                               in_words(pool_.budget() * chunk_bytes_) + " for small allocations");
    }
  };
  require(large_.now + small_.now < pool_.budget());
  Slot* slot = small_slot();
  // Smaller blocks are given out again in the order of the program, and so is what they lay in: nothing to wait for.
  if (slot->state == SlotState::cached) {
    slots_.claim(*slot);
  } else {
    require(gather(1));
    slots_.map(*slot, pool_.newest(), SlotState::owned);
    pool_.take();
  }
  const OnError undo([&] { disown(slot, 1); });
  slots_.allow(slot, 1, Access::write);
  small_.add(1);
  return slot;
}

bool ChunkedMemory::SmallArenas::release(Range range) noexcept {
  const CurrentContext current(memory_.backend_);
  if (current.result() != CUDA_SUCCESS) return false;
  memory_.disown_small(memory_.slots_.at(range.address));
  return true;
}

Fences::Fence ChunkedMemory::mark() const noexcept {
  try {
    return marker_ ? marker_() : Fences::kWholeDevice;
  } catch (const std::exception&) {
    return Fences::kWholeDevice;
  }
}

void ChunkedMemory::disown_small(Slot* slot) noexcept {
  const Fences::Fence everything = left_out(Wait::small_chunk_freed) ? 0 : mark();
  replace_fence(*slot, everything);
  fences_.release(everything);
  small_.subtract(1);
  disown(slot, 1);
}

bool ChunkedMemory::give_back() noexcept {
  const CurrentContext current(backend_);
  if (current.result() != CUDA_SUCCESS) return false;
  const auto gone = [&](uint64_t address) {
    return clear_all(slots_.at(address), kSmallRegionSlots) && slots_.free(address);
  };
  small_regions_.erase(std::remove_if(small_regions_.begin(), small_regions_.end(), gone), small_regions_.end());
  const bool host = host_.give_back();
  return pool_.give_back() && host && small_regions_.empty();
}

}  // namespace um
