// The live allocations of one device: a heap for each placement, what is remembered about each block, and the sums.
// Not thread-safe: the device's lock is held.
#pragma once

#include <memory>

#include "memory/backend.h"
#include "memory/driver_arenas.h"
#include "memory/managed_heap.h"
#include "memory/statistics.h"

namespace um {

// When and for what an allocation was made; names are interned.
struct Birth {
  uint32_t step, op_index, op, module;
};

class Allocations {
 public:
  Allocations(um_device* device, const Backend& backend)
      : device_(device), backend_(backend), room_bytes_(backend.total_bytes) {}

  // Throws um::Error, with a diagnosis where memory is out, and then nothing has changed.
  Block* allocate(uint64_t bytes, const um_placement& placement, const Birth& birth);
  void free(Block* block) noexcept;
  void label(Block* block, uint32_t role, uint32_t name);
  // Gives back every empty arena of every heap. False when the driver kept something.
  bool trim() noexcept;
  // Of the heaps of one kind of memory.
  bool trim(um_memory memory) noexcept;

  // Every arena, in no order.
  template <class Each>
  void each_arena(const Each& each) const {
    for (const auto& each_heap : heaps_) {
      if (each_heap == nullptr) continue;
      for (const Arena* arena : each_heap->heap.arenas()) each(*arena);
    }
  }
  // Arenas in order of address.
  std::vector<const Arena*> arenas_by_address() const;
  // Changes whenever an arena comes or goes.
  uint64_t arena_changes() const { return arena_changes_; }
  uint64_t plain_bytes() const { return plain_bytes_; }  // reserved for plain device memory

  // What may lie on the device at once. As long as no more is reserved, empty arenas are kept: whoever gets their pages
  // next finds them on the device. Above it they are given back: eviction would copy contents that nobody needs.
  void set_room(uint64_t bytes) { room_bytes_ = bytes; }

  Statistics statistics;

 private:
  struct Heap {
    Heap(um_device* device, const Backend& backend, const um_placement& placement, StablePool<Block>& pool,
         uint64_t first_arena_bytes)
        : source(backend, placement), heap(device, placement, source, pool, first_arena_bytes) {}
    DriverArenas source;
    ManagedHeap heap;
  };
  static constexpr size_t kPlacements = 2 * 3 * UM_ADVICE_COUNT;

  ManagedHeap& heap_of(const um_placement& placement);
  Block* allocate_or_trim(ManagedHeap& heap, uint64_t bytes);
  std::string diagnosis(const um_placement& placement, uint64_t bytes, const char* reason) const;
  void count_arenas(const ManagedHeap& heap, uint64_t reserved_before_bytes) noexcept;

  um_device* const device_;
  const Backend& backend_;
  StablePool<Block> pool_;
  std::unique_ptr<Heap> heaps_[kPlacements];
  uint64_t last_serial_ = 0;
  uint64_t arena_changes_ = 0, plain_bytes_ = 0;
  uint64_t room_bytes_;
};

}  // namespace um
