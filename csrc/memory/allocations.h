// The live allocations of one device: a heap for each placement, what is remembered about each block, and the sums.
// Not thread-safe: the device's lock is held.
#pragma once

#include <memory>

#include "memory/backend.h"
#include "memory/driver_arenas.h"
#include "memory/managed_heap.h"
#include "memory/movable_memory.h"
#include "memory/statistics.h"

namespace um {

// When and for what an allocation was made; names are interned.
struct Birth {
  uint32_t step, op_index, op, module;
};

class Allocations {
 public:
  Allocations(um_device* device, const Backend& backend)
      : device_(device), backend_(backend), plain_{backend.total_bytes}, room_bytes_(backend.total_bytes) {}
  ~Allocations();
  Allocations(const Allocations&) = delete;
  Allocations& operator=(const Allocations&) = delete;

  // From now on there is UM_MEMORY_CHUNKED; both are borrowed, and outlive this. Requests come here for what is small.
  // Throws std::bad_alloc.
  void set_chunked(MovableMemory* memory, ArenaSource& small_arenas);

  // Throws um::Error, with a diagnosis where memory is out, and then nothing has changed.
  Block* allocate(uint64_t bytes, const um_placement& placement, const Birth& birth);
  void free(Block* block) noexcept;
  // A block of which nothing is remembered, for one that changes its place; and back. `take` throws as `allocate`.
  Block* take(uint64_t bytes, const um_placement& placement);
  void give(Block* block) noexcept;
  // An allocation lies in another kind of memory from now on.
  void moved(const Block& block) noexcept { *placed_bytes(block) += block.record.bytes; }
  // Of one that somebody else makes and frees.
  void enter(Block* block, uint64_t bytes, const um_placement& placement, const Birth& birth) noexcept;
  void leave(const Block& block) noexcept;
  void label(Block* block, uint32_t role, uint32_t name);
  // Gives back every empty arena of every heap, and all of chunked memory that nobody uses. False when the driver kept
  // something.
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
    if (movable_ == nullptr) return;
    movable_->each_arena(each);
    for (const Arena* arena : small_->arenas()) each(*arena);
  }
  // Every live allocation, arena by arena.
  template <class Each>
  void each_block(const Each& each) const {
    each_arena([&](const Arena& arena) { arena.each_block(each); });
  }
  // Arenas in order of address.
  std::vector<const Arena*> arenas_by_address() const;
  // Changes whenever an arena comes or goes.
  uint64_t arena_changes() const { return arena_changes_; }
  // Of the latest allocation.
  uint64_t last_serial() const { return last_serial_; }
  // Reserved for what is on the device whatever happens: plain memory and chunks.
  uint64_t plain_bytes() const {
    return plain_.reserved_bytes +
           (movable_ != nullptr ? movable_->ranges.chunks.pool.created() * movable_->chunk_bytes() : 0);
  }

  // What may lie on the device at once. As long as no more is reserved, empty arenas are kept: whoever gets their pages
  // next finds them on the device. Above it they are given back: eviction would copy contents that nobody needs.
  void set_room(uint64_t bytes) { room_bytes_ = bytes; }
  // UM_MEMORY_DEVICE takes no more than this from now on; 0: all that there is.
  void limit_plain(uint64_t bytes) {
    plain_.most_bytes = bytes != 0 ? std::min(bytes, backend_.total_bytes) : backend_.total_bytes;
  }
  bool limits_plain() const { return plain_.most_bytes < backend_.total_bytes; }
  // Descriptors for whoever else makes blocks of this device.
  StablePool<Block>& blocks() { return pool_; }
  // Whether a small chunked block of so many bytes finds room in what small ones may take.
  bool takes_small(uint64_t bytes) const;
  // Gives back empty arenas of small chunked blocks. Whether there were any.
  bool trim_small() noexcept;

  Statistics statistics;

 private:
  struct Heap {
    Heap(um_device* device, const Backend& backend, const um_placement& placement, StablePool<Block>& pool,
         uint64_t first_arena_bytes, const PlainMemory& plain)
        : source(backend, placement, plain), heap(device, placement, source, pool, first_arena_bytes) {}
    DriverArenas source;
    ManagedHeap heap;
  };
  static constexpr size_t kPlacements = 2 * 3 * UM_ADVICE_COUNT;

  ManagedHeap& heap_of(const um_placement& placement);
  uint64_t* placed_bytes(const Block& block) noexcept;
  bool trim_chunked() noexcept;
  Block* allocate_or_trim(ManagedHeap& heap, uint64_t bytes);
  std::string diagnosis(const um_placement& placement, uint64_t bytes, const char* reason) const;
  void count_arenas(const ManagedHeap& heap, uint64_t reserved_before_bytes) noexcept;

  um_device* const device_;
  const Backend& backend_;
  StablePool<Block> pool_;
  PlainMemory plain_;
  std::unique_ptr<Heap> heaps_[kPlacements];
  MovableMemory* movable_ = nullptr;
  std::unique_ptr<ManagedHeap> small_;  // of chunked memory, once there is any
  uint64_t last_serial_ = 0;
  uint64_t arena_changes_ = 0;
  uint64_t room_bytes_;
};

}  // namespace um
