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
  ChunkPool::Chunk chunk = 0;  // or the host's
  // Holds a reference. Cached: what must have passed before the chunk is used elsewhere. Owned: likewise, and what is
  // about the block that lay here before; whoever uses the chunk here runs after it.
  Fences::Fence last_use = 0;
  SlotState state = SlotState::empty;
  Access access = Access::none;  // the device's
  bool veiled = false;           // it is the copies' alone (emulated::Hooks::veil)
  Slot* older = nullptr;         // of the cached ones, in the order in which they became that
  Slot* newer = nullptr;
};

class ChunkSlots {
 public:
  ChunkSlots(const Backend& backend, uint64_t chunk_bytes) : backend_(backend), chunk_bytes_(chunk_bytes) {}
  ChunkSlots(const ChunkSlots&) = delete;
  ChunkSlots& operator=(const ChunkSlots&) = delete;

  // Whole chunks of address space, on a multiple of 2 MiB. Throws um::Error.
  uint64_t reserve(uint64_t bytes);
  // What reserve gave, all of it empty. False when the driver refused.
  bool free(uint64_t address) noexcept;
  // The slots of one reservation lie one after the other, in order of address.
  Slot* at(uint64_t address) const;

  // Into an empty slot, where nothing may access it yet. Throws um::Error.
  void map(Slot& slot, ChunkPool::Chunk chunk, SlotState state);
  // What is mapped there and not cached. False when the driver refused.
  bool unmap(Slot& slot) noexcept;
  // For the device, in mapped slots that lie one after the other. Throws um::Error.
  void allow(Slot* first, uint64_t count, Access access);
  // Of the emulated device: whether the slots are hidden from all but copies. Throws um::Error.
  void veil(Slot* first, uint64_t count, bool veiled);

  // From owned to cached, and back.
  void cache(Slot& slot) noexcept;
  void claim(Slot& slot) noexcept;
  Slot* oldest_cached() const { return oldest_; }

 private:
  struct Region {
    uint64_t address, bytes;
    std::unique_ptr<Slot[]> slots;
  };
  const Region& region_of(uint64_t address) const;

  const Backend& backend_;
  const uint64_t chunk_bytes_;
  std::vector<Region> regions_;  // in order of address
  Slot* oldest_ = nullptr;
  Slot* newest_ = nullptr;
};

}  // namespace um
