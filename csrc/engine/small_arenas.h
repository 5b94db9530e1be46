// Arenas of small allocations, of one chunk each. These allocations are never evicted, so an arena keeps its chunk
// until all of its allocations are freed and the chunk is needed elsewhere.
//
// Not thread-safe: callers hold the device's lock. The functions make its context current.
#pragma once

#include <map>

#include "engine/mover.h"
#include "memory/managed_heap.h"

namespace um {

class SmallArenas : public ArenaSource {
 public:
  SmallArenas(const Backend& backend, MovableMemory& memory, Mover& mover, Fences& fences, SwapEvents& events)
      : backend_(backend), memory_(memory), mover_(mover), fences_(fences), events_(events) {}
  ~SmallArenas() override = default;
  SmallArenas(const SmallArenas&) = delete;
  SmallArenas& operator=(const SmallArenas&) = delete;

  // Takes one chunk, ordered for all known streams. Throws UM_OUT_OF_DEVICE_MEMORY if nothing more can be evicted for
  // it.
  Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) override;
  bool release(Range range) noexcept override;

 private:
  ChunkRange* take();

  const Backend& backend_;
  MovableMemory& memory_;
  Mover& mover_;
  Fences& fences_;
  SwapEvents& events_;
  std::map<uint64_t, ChunkRange*> ranges_;  // by address
};

}  // namespace um
