#include "engine/small_arenas.h"

#include "base/error.h"
#include "base/on_error.h"
#include "memory/address_map.h"
#include "memory/host_memory.h"

namespace um {

// In the map of addresses, the arena in the range replaces the arena in which the range itself lies.
ArenaSource::Range SmallArenas::acquire(uint64_t, uint64_t) {
  const RequiredContext current(backend_);
  ChunkRange* const range = take();
  const OnError undo([&] { memory_.ranges.give(range, 0); });
  mover_.waits.streams.order_all(range->chunks.front()->last_use, Wait::place_reused);
  ranges_.emplace(range->address, range);
  events_.placed(*range->room, true);
  return {range->address, memory_.chunk_bytes()};
}

ChunkRange* SmallArenas::take() {
  while (mover_.make_room(memory_.chunk_bytes())) {
    if (ChunkRange* const range = memory_.ranges.take(1, nullptr)) return range;
  }
  throw Error(UM_OUT_OF_DEVICE_MEMORY, "no chunk of " + in_words(memory_.chunk_bytes()) + " is left of the budget of " +
                                           in_words(memory_.ranges.chunks.pool.budget() * memory_.chunk_bytes()) +
                                           " for small allocations");
}

bool SmallArenas::release(Range range) noexcept {
  const CurrentContext current(backend_);
  if (current.result() != driver::CUDA_SUCCESS) return false;
  const auto found = ranges_.find(range.address);
  Fences::Fence everything = Fences::kWholeDevice;
  try {
    everything = left_out(Wait::small_chunk_freed) ? 0 : mover_.waits.streams.last_use(~uint64_t{0}, {});
  } catch (const std::exception&) {
    everything = Fences::kWholeDevice;
  }
  events_.placed(*found->second->room, false);
  address_map().restore(found->second->room->arena, range.address, range.address + range.bytes);
  memory_.ranges.give(found->second, everything);
  fences_.release(everything);
  ranges_.erase(found);
  return true;
}

}  // namespace um
