// Arenas of small allocations, of which each is one chunk. What lies there never leaves, so a chunk is theirs until all
// of its allocations have been freed and somebody else needs it. Device's lock as for all; contexts are made current.
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

  // One chunk, for all streams that are known. Throws UM_OUT_OF_DEVICE_MEMORY when nothing more will leave for it.
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
