// The live allocations of one device: a heap for each placement, the record of each block, and the statistics.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <memory>

#include "memory/backend.h"
#include "memory/driver_arenas.h"
#include "memory/managed_heap.h"
#include "memory/movable_memory.h"
#include "memory/statistics.h"

namespace um {

// The step, op and module in which an allocation was made. Names are interned.
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

  // Adds UM_MEMORY_CHUNKED. Both arguments are borrowed, and outlive this. Requests for small blocks of chunked memory
  // are then served by a heap here. Throws std::bad_alloc.
  void set_chunked(MovableMemory* memory, ArenaSource& small_arenas);

  // Throws um::Error and then has changed nothing. If memory is out, the message contains a diagnosis.
  Block* allocate(uint64_t bytes, const um_placement& placement, const Birth& birth);
  void free(Block* block) noexcept;
  // Allocates a block without a record, as the new place of an allocation that moves; give() frees it. take() throws as
  // allocate() does.
  Block* take(uint64_t bytes, const um_placement& placement);
  void give(Block* block) noexcept;
  // Counts an allocation under the kind of memory to which it has moved.
  void moved(const Block& block) noexcept { *placed_bytes(block) += block.record.bytes; }
  // Begin and end the record of a block that other code allocates and frees.
  void enter(Block* block, uint64_t bytes, const um_placement& placement, const Birth& birth) noexcept;
  void leave(const Block& block) noexcept;
  void label(Block* block, uint32_t role, uint32_t name);
  // Gives back all empty arenas of all heaps, and all unused chunked memory. Returns false if the driver refused one.
  bool trim() noexcept;
  // Does the same for the heaps of one kind of memory.
  bool trim(um_memory memory) noexcept;

  // Calls `each` for every arena, in no order.
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
  // Calls `each` for every live allocation, arena by arena.
  template <class Each>
  void each_block(const Each& each) const {
    each_arena([&](const Arena& arena) { arena.each_block(each); });
  }
  // Returns the arenas in order of address.
  std::vector<const Arena*> arenas_by_address() const;
  // Returns a number that changes whenever an arena is added or removed.
  uint64_t arena_changes() const { return arena_changes_; }
  // Returns the serial number of the newest allocation.
  uint64_t last_serial() const { return last_serial_; }
  // Returns the bytes of plain memory and of chunks: neither is ever paged out by the driver.
  uint64_t plain_bytes() const {
    return plain_.reserved_bytes +
           (movable_ != nullptr ? movable_->ranges.chunks.pool.created() * movable_->chunk_bytes() : 0);
  }

  // Sets how many bytes may lie on the device at once. While no more is reserved, empty arenas are kept, because their
  // pages are on the device when they are allocated again. Above it empty arenas are given back, because the driver
  // would otherwise copy dead contents to evict them.
  void set_room(uint64_t bytes) { room_bytes_ = bytes; }
  // Limits UM_MEMORY_DEVICE to so many bytes; 0: the device's total memory.
  void limit_plain(uint64_t bytes) {
    plain_.most_bytes = bytes != 0 ? std::min(bytes, backend_.total_bytes) : backend_.total_bytes;
  }
  bool limits_plain() const { return plain_.most_bytes < backend_.total_bytes; }
  // Block descriptors for other classes that make blocks of this device.
  StablePool<Block>& blocks() { return pool_; }
  // Returns whether a small chunked block of so many bytes fits within the limit for small blocks.
  bool takes_small(uint64_t bytes) const;
  // Gives back empty arenas of small chunked blocks. Returns whether there were any.
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
  std::unique_ptr<ManagedHeap> small_;  // for small chunked blocks; nullptr before set_chunked()
  uint64_t last_serial_ = 0;
  uint64_t arena_changes_ = 0;
  uint64_t room_bytes_;
};

}  // namespace um
