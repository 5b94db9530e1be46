// Cuts arenas of one placement (memory, role, advice) into blocks. Arenas are whole 2 MiB pages and belong to one heap,
// so two placements never share a page: advice and eviction act on pages. A heap of addresses for chunks has blocks of
// whole chunks.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/arena.h"
#include "memory/free_lists.h"
#include "memory/stable_pool.h"
#include "umadvise.h"

namespace um {

// Provides the memory of arenas.
class ArenaSource {
 public:
  struct Range {
    uint64_t address, bytes;
  };
  virtual ~ArenaSource() = default;
  // Returns `wanted_bytes` if possible, and at least `least_bytes`. Both and the address are multiples of 2 MiB.
  // Throws.
  virtual Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) = 0;
  // Returns false if the driver refused; the range then still belongs to the caller.
  virtual bool release(Range range) noexcept = 0;
};

// The placement of heaps whose blocks are no allocations of a program: host copies, and addresses for chunks.
inline constexpr um_placement kInternalPlacement{UM_MEMORY_CHUNKED, UM_ROLE_PARAMETER, UM_ADVICE_NONE};

class ManagedHeap {
 public:
  static constexpr uint64_t kFirstArenaBytes = uint64_t{64} << 20;
  static constexpr uint64_t kMostArenaBytes = uint64_t{1} << 30;  // a larger request gets an arena of its own

  // `blocks`: the descriptors of one device, shared by its heaps. Blocks are multiples of `unit_bytes` and start on
  // multiples of it in their arena. A unit above 512 bytes is a multiple of 2 MiB that divides `first_arena_bytes`.
  ManagedHeap(um_device* device, const um_placement& where, ArenaSource& source, StablePool<Block>& blocks,
              uint64_t first_arena_bytes, uint64_t unit_bytes = kGranuleBytes);
  // Requires that every block was freed, and that every arena was given back by trim().
  ~ManagedHeap() = default;
  ManagedHeap(const ManagedHeap&) = delete;
  ManagedHeap& operator=(const ManagedHeap&) = delete;

  // Returns a block of at least `bytes` (not 0) on a multiple of 512 bytes. If it has 2 MiB or more, or the unit is
  // larger than 512 bytes, it is on a multiple of 2 MiB. Throws, and then has changed nothing.
  Block* allocate(uint64_t bytes);
  // Frees a block. An arena that becomes empty is given back, unless `keeps_empty` is set or it is the largest empty
  // one: a heap that needs only one arena must not ask the driver for it again and again.
  void free(Block* block, bool keeps_empty) noexcept;
  // Returns whether a block of so many bytes fits into the existing arenas.
  bool has_room(uint64_t bytes) const;
  // Gives back every empty arena. Returns false if the driver refused one.
  bool trim() noexcept;

  const um_placement placement;
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  const std::vector<Arena*>& arenas() const { return arenas_; }

 private:
  uint64_t alignment_of(uint64_t bytes) const;
  Block* grow(uint64_t bytes);
  Block* insert_below(Block* next, uint64_t address, uint64_t bytes) noexcept;
  void unlink(Block* block) noexcept;
  bool give_back(Arena* arena) noexcept;

  um_device* device_;
  ArenaSource& source_;
  StablePool<Block>& blocks_;
  FreeLists free_lists_;
  std::vector<Arena*> arenas_;
  uint64_t first_arena_bytes_;
  uint64_t next_arena_bytes_;
  const uint64_t unit_bytes_;
  uint64_t reserved_bytes_ = 0;
};

inline bool managed(const Block& block) { return block.arena->heap->placement.memory == UM_MEMORY_MANAGED; }

}  // namespace um
