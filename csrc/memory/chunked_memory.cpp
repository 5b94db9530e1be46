#include "memory/chunked_memory.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/features.h"
#include "memory/host_memory.h"
#include "memory/physical.h"

namespace um {

using driver::CUstream;

namespace {

constexpr uint64_t kDefaultChunkBytes = uint64_t{20} << 20;
constexpr uint64_t kEmulatedChunkBytes = uint64_t{2} << 20;
// Of the chunks that were freed last, so many fences are asked at most whether they have passed: younger ones hardly
// have where these have not.
constexpr int kFencesAsked = 16;

void require(const Backend& backend, Feature feature) {
  const std::string reason = why_not(backend, feature);
  if (!reason.empty()) throw Error(UM_UNSUPPORTED, "explicit swapping is not possible: " + reason);
}

uint64_t checked_chunk_bytes(const Backend& backend, const um_chunk_options& options) {
  require(backend, options.host_mapped != 0 ? Feature::host_mapping : Feature::chunks);
  uint64_t unit = kBlockBytes;  // what the driver's granularity divides, or is a multiple of: both powers of two
  for (const bool on_host : {false, true}) {
    if (on_host && options.host_mapped == 0) break;
    const driver::CUmemAllocationProp properties = physical_properties(backend, on_host);
    size_t granularity = 0;
    backend.check(backend.call().mem_get_allocation_granularity(&granularity, &properties,
                                                                driver::CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                  "asking for the granularity of physical memory");
    unit = std::max<uint64_t>(unit, granularity);
  }
  const uint64_t bytes = ChunkedMemory::wanted_chunk_bytes(backend, options);
  if (bytes % unit != 0) {
    throw Error(UM_INVALID_ARGUMENT, "chunks of " + std::to_string(bytes) + " bytes: expected a multiple of " +
                                         in_words(unit) + ", or 0 for the default");
  }
  return bytes;
}

uint64_t checked_budget(uint64_t bytes, uint64_t chunk_bytes) {
  if (bytes < chunk_bytes) {
    throw Error(UM_INVALID_ARGUMENT, "a budget of " + in_words(bytes) + " is below one chunk of " +
                                         in_words(chunk_bytes) + ": give it more, or make the chunks smaller");
  }
  return bytes / chunk_bytes;
}

}  // namespace

uint64_t ChunkedMemory::wanted_chunk_bytes(const Backend& backend, const um_chunk_options& options) {
  if (options.chunk_bytes != 0) return options.chunk_bytes;
  return backend.hooks != nullptr ? kEmulatedChunkBytes : kDefaultChunkBytes;
}

ChunkedMemory::ChunkedMemory(const Backend& backend, const um_chunk_options& options, Fences& fences)
    : backend_(backend),
      fences_(fences),
      chunk_bytes_(checked_chunk_bytes(backend, options)),
      most_small_bytes_(options.small == UM_SMALL_LEAVE ? 0 : chunk_bytes_ / 2),
      pool_(backend, chunk_bytes_, checked_budget(options.budget_bytes, chunk_bytes_)),
      slots_(backend, chunk_bytes_),
      host_(backend, fences, chunk_bytes_, options.host_budget_bytes, options.host_mapped != 0) {}

void ChunkedMemory::set_budget(uint64_t bytes) {
  pool_.set_budget(checked_budget(bytes, chunk_bytes_));
  shed();
}

void ChunkedMemory::reset_peaks() {
  for (Level* level : {&large_, &small_, &host_.in_use}) level->reset_peak();
}

// ---- where chunks come from ----------------------------------------------------------------------------------

uint64_t ChunkedMemory::obtainable() const {
  const uint64_t used = large_.now + small_.now;
  return pool_.most() > used ? pool_.most() - used : 0;
}

// The chunk of a cached slot becomes an unused one. Throws um::Error.
void ChunkedMemory::take(Slot& slot) {
  fences_.wait(slot.last_use, Wait::chunk_taken);
  if (!take_ready(slot)) throw Error(UM_DRIVER_ERROR, "the driver does not unmap a chunk that nobody uses");
}

// Its last use is over. False when the driver refused: it stays cached.
bool ChunkedMemory::take_ready(Slot& slot) noexcept {
  slots_.claim(slot);
  const ChunkPool::Chunk chunk = slot.chunk;
  if (!slots_.unmap(slot)) {
    slots_.cache(slot);
    return false;
  }
  replace_fence(slot, 0);
  pool_.give(chunk);
  return true;
}

// Until that many are unused, or no other cached one is known to be ready.
void ChunkedMemory::take_passed(uint64_t chunks) noexcept {
  Fences::Fence pending = 0;  // asked last, and had not passed
  int asked = 0;
  for (Slot* slot = slots_.oldest_cached(); slot != nullptr && pool_.unused() < chunks && asked < kFencesAsked;) {
    Slot* newer = slot->newer;
    if (slot->last_use == 0 || slot->last_use != pending) {
      if (fences_.surely_passed(slot->last_use, Wait::chunk_ready)) {
        if (!take_ready(*slot)) return;
      } else {
        pending = slot->last_use;
        ++asked;
      }
    }
    slot = newer;
  }
}

// True when that many chunks are unused now: unused ones, new ones, then those of freed ranges. A device that had no
// more is asked again only when nothing else is left.
bool ChunkedMemory::gather(uint64_t chunks) {
  while (pool_.unused() < chunks && pool_.created() < pool_.most() && pool_.create()) {
  }
  take_passed(chunks);
  while (pool_.unused() < chunks && slots_.oldest_cached() != nullptr) take(*slots_.oldest_cached());
  while (pool_.unused() < chunks && pool_.create()) {
  }
  return pool_.unused() >= chunks;
}

// Gives back what there is beyond the budget, as far as nobody has to be waited for.
void ChunkedMemory::shed() noexcept {
  if (pool_.surplus() == 0) return;
  take_passed(pool_.surplus());
  pool_.shed();
}

// Nothing is mapped in the slot then. Throws um::Error.
void ChunkedMemory::clear(Slot& slot) {
  if (slot.state == SlotState::cached) take(slot);
  if (slot.state == SlotState::host && !slots_.unmap(slot)) {
    throw Error(UM_DRIVER_ERROR, "the driver does not unmap memory of the host");
  }
}

// ---- chunks under blocks -------------------------------------------------------------------------------------

uint64_t ChunkedMemory::backed(const Block& block) const {
  return slots_.at(block.address)->state == SlotState::owned ? chunks_of(block) : 0;
}

bool ChunkedMemory::back(const Block& block, CUstream first_user, Access shown) {
  Slot* slots = slots_.at(block.address);
  const uint64_t count = chunks_of(block);
  if (slots->state == SlotState::owned) return true;
  if (large_.now + small_.now + count > pool_.budget()) return false;
  claim_cached(slots, count);  // first of all: else their chunks would be taken for the other slots
  const OnError undo([&] { disown(slots, count); });
  uint64_t missing = 0;
  for (Slot* slot = slots; slot != slots + count; ++slot) {
    clear(*slot);
    missing += slot->state == SlotState::empty;
  }
  if (!gather(missing)) {
    disown(slots, count);
    return false;
  }
  settle(slots, count, first_user);
  for (Slot* slot = slots; slot != slots + count; ++slot) {
    if (slot->state == SlotState::owned) continue;
    slots_.map(*slot, pool_.newest(), SlotState::owned);
    pool_.take();
  }
  slots_.veil(slots, count, shown == Access::none);
  slots_.allow(slots, count, shown == Access::write ? Access::write : Access::read);  // copies write all the same
  large_.add(count);
  return true;
}

void ChunkedMemory::claim_cached(Slot* slots, uint64_t count) noexcept {
  for (Slot* slot = slots; slot != slots + count; ++slot) {
    if (slot->state == SlotState::cached) slots_.claim(*slot);
  }
}

void ChunkedMemory::disown(Slot* slots, uint64_t count) noexcept {
  for (Slot* slot = slots; slot != slots + count; ++slot) {
    if (slot->state == SlotState::owned) slots_.cache(*slot);
  }
  shed();
}

// What used the chunks before comes before what uses them now. The fences are kept: other streams know nothing of that
// order.
void ChunkedMemory::settle(Slot* slots, uint64_t count, CUstream first_user) {
  Fences::Fence done = 0;
  for (Slot* slot = slots; slot != slots + count; ++slot) {
    if (slot->last_use != done) fences_.order(first_user, slot->last_use, Wait::place_reused);
    done = slot->last_use;
  }
}

void ChunkedMemory::replace_fence(Slot& slot, Fences::Fence fence) noexcept {
  fences_.retain(fence);
  fences_.release(slot.last_use);
  slot.last_use = fence;
}

void ChunkedMemory::strip(const Block& block) noexcept {
  if (backed(block) == 0) return;
  Slot* slots = slots_.at(block.address);
  const uint64_t count = chunks_of(block);
  for (Slot* slot = slots; slot != slots + count; ++slot) {
    slots_.cache(*slot);
    if (fences_.surely_passed(slot->last_use, Wait::chunk_stripped)) static_cast<void>(take_ready(*slot));
  }
  large_.subtract(count);
  shed();
}

void ChunkedMemory::freed(const Block& block, Fences::Fence last_use) noexcept {
  Slot* slots = slots_.at(block.address);
  const uint64_t count = chunks_of(block);
  if (backed(block) != 0) {
    for (Slot* slot = slots; slot != slots + count; ++slot) {
      if (last_use != 0) replace_fence(*slot, last_use);
    }
    large_.subtract(count);
    disown(slots, count);
  }
  unmap_host(slots, count);
}

void ChunkedMemory::show(const Block& block, Access shown) {
  Slot* slots = slots_.at(block.address);
  const uint64_t count = chunks_of(block);
  if (backend_.hooks == nullptr) return;
  if (shown == Access::none) return slots_.veil(slots, count, true);
  slots_.allow(slots, count, shown == Access::write ? Access::write : Access::read);
  slots_.veil(slots, count, false);
}

void ChunkedMemory::vacate(const Block& block) {
  Slot* slots = slots_.at(block.address);
  for (Slot* slot = slots; slot != slots + chunks_of(block); ++slot) clear(*slot);
}

}  // namespace um
