// Reserved address space in slots of one chunk, and what is mapped in each of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory/backend.h"
#include "memory/chunk_pool.h"
#include "memory/fence.h"

namespace um {

enum class SlotState : uint8_t {
  empty,
  owned,   // a chunk of the live block or arena that lies here
  cached,  // a chunk that is nobody's
  host     // a host chunk, which stays its range's
};
enum class Access : uint8_t { none, read, write };

struct Slot {
  uint64_t address = 0;
  ChunkPool::Chunk chunk = 0;  // owned and cached
  Fences::Fence last_use = 0;  // cached: before it is unmapped, or used by somebody else
  SlotState state = SlotState::empty;
  Access access = Access::none;  // the device's
  Slot* older = nullptr;         // of the cached ones, in the order in which they became that
  Slot* newer = nullptr;
};

class ChunkSlots {
 public:
  ChunkSlots(const Backend& backend, Fences& fences, uint64_t chunk_bytes)
      : backend_(backend), fences_(fences), chunk_bytes_(chunk_bytes) {}
  ChunkSlots(const ChunkSlots&) = delete;
  ChunkSlots& operator=(const ChunkSlots&) = delete;

  // Whole chunks of address space, on a multiple of 2 MiB. Throws um::Error.
  uint64_t reserve(uint64_t bytes);
  // All of it is empty. False when the driver refused.
  bool free(uint64_t address) noexcept;
  // Those of [address, address + count chunks) lie one after the other.
  Slot* at(uint64_t address) const;

  // An empty slot. Nothing may access it yet. Throws um::Error.
  void map(Slot& slot, ChunkPool::Chunk chunk, SlotState state);
  // Whatever is mapped there, which is not cached. False when the driver refused.
  bool unmap(Slot& slot) noexcept;
  // Mapped slots, one after the other, for the device. Throws um::Error.
  void allow(Slot* first, uint64_t count, Access access);

  // Owned to cached and back.
  void cache(Slot& slot, Fences::Fence last_use) noexcept;
  void claim(Slot& slot) noexcept;
  Slot* oldest_cached() const { return oldest_; }
  uint64_t cached() const { return cached_; }
  uint64_t map_calls() const { return map_calls_; }

 private:
  struct Region {
    uint64_t address, bytes;
    std::unique_ptr<Slot[]> slots;
  };

  const Backend& backend_;
  Fences& fences_;
  const uint64_t chunk_bytes_;
  std::vector<Region> regions_;  // in order of address
  Slot* oldest_ = nullptr;
  Slot* newest_ = nullptr;
  uint64_t cached_ = 0, map_calls_ = 0;
};

}  // namespace um
