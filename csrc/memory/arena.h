// One range of device memory, and the blocks into which it is cut. All metadata of a block lies outside of the range: a
// word written into managed memory would be a page fault.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "um/model.h"  // kBlockBytes

struct um_device;

namespace um {

inline constexpr uint64_t kGranuleBytes = 512;  // every block starts on a multiple, as callers of cudaMalloc expect

class Arena;
class ManagedHeap;

// The metadata of an allocation.
struct Record {
  uint64_t serial = 0;
  uint64_t bytes = 0;  // as requested
  uint32_t role = 0, name = 0;
  uint32_t birth_step = 0, birth_op_index = 0, birth_op = 0, birth_module = 0;
  int32_t storage = -1;     // its number in the steps (memory/layout.h); -1: none
  bool persistent = false;  // the same allocation in every step (engine/matching/persistent_allocations.h)
};

// Bytes in which the engine keeps its own notes of an allocation. They are 0 when the allocation begins.
class OwnersSlot {
 public:
  template <class Kept>
  Kept& as() {
    static_assert(sizeof(Kept) <= sizeof(bytes_) && std::is_trivial_v<Kept>);
    return *reinterpret_cast<Kept*>(bytes_);
  }
  template <class Kept>
  const Kept& as() const {
    return const_cast<OwnersSlot*>(this)->as<Kept>();
  }

 private:
  alignas(8) unsigned char bytes_[40] = {};
};

// A run of granules of one arena, free or allocated. Neighbours are linked, so that free blocks merge in constant time.
struct Block {
  uint64_t address = 0, bytes = 0;
  Arena* arena = nullptr;
  Block* previous = nullptr;
  Block* next = nullptr;
  Block* previous_free = nullptr;  // list links of FreeLists; StablePool uses `next_free` too
  Block* next_free = nullptr;
  bool free = false;
  bool parked = false;  // a place that is kept for an allocation, and is none itself (memory/places.h)
  Record record;
  OwnersSlot owners;

  uint64_t end() const { return address + bytes; }
  // Returns whether nothing else is allocated in its arena.
  bool alone() const {
    return (previous == nullptr || (previous->free && previous->previous == nullptr)) &&
           (next == nullptr || (next->free && next->next == nullptr));
  }
};

// A StablePool recycles arenas, so `device` may be read at any time. All other members need the device's lock.
class Arena {
 public:
  // `address` and `bytes` are multiples of 2 MiB. Throws um::Error if there is no address space for the tables.
  void open(um_device* owner, ManagedHeap* of, uint64_t address, uint64_t bytes);
  // Requires that no block is entered.
  void close() noexcept;

  // Every allocated block is entered. Free and parked blocks are not, so cutting and merging free memory touches no
  // table.
  void enter(Block* block);
  void leave(const Block* block);
  // Returns the first allocated block at or above `at` within the same 2 MiB page; nullptr: there is none.
  Block* nearest(uint64_t at) const;
  // Both return the allocated block that starts at, or contains, an address in this arena; nullptr: there is none.
  Block* starting_at(uint64_t at) const { return at % kGranuleBytes == 0 ? starts_[granule(at)] : nullptr; }
  Block* containing(uint64_t at) const;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return first->free && first->next == nullptr; }
  // Calls `each` for every allocated block that is not parked, in order of address.
  template <class Each>
  void each_block(const Each& each) const {
    for (Block* block = first; block != nullptr; block = block->next) {
      if (!block->free && !block->parked) each(*block);
    }
  }

  std::atomic<um_device*> device{nullptr};
  ManagedHeap* heap = nullptr;
  Block* first = nullptr;  // the block at the lowest address; never nullptr while the arena is open
  Arena* next_free = nullptr;
  uint64_t serial = 0;  // differs from those of earlier arenas at the same address

 private:
  uint64_t granule(uint64_t at) const { return (at - address_) / kGranuleBytes; }
  void drop_tables() noexcept;

  uint64_t address_ = 0, bytes_ = 0;
  // One lazily committed mapping has three tables. `starts_` has a pointer for each granule: the allocated block that
  // starts there. `across_` has a pointer for each 2 MiB: the block that was entered last of those that span its lower
  // edge, which is checked before use. `start_bits_` has a bit for each granule.
  void* tables_ = nullptr;
  uint64_t tables_bytes_ = 0;
  Block** starts_ = nullptr;
  Block** across_ = nullptr;
  uint64_t* start_bits_ = nullptr;
};

inline void Arena::enter(Block* block) {
  const uint64_t at = granule(block->address);
  starts_[at] = block;
  start_bits_[at / 64] |= uint64_t{1} << (at % 64);
  const uint64_t last = (block->end() - 1 - address_) / kBlockBytes;
  for (uint64_t edge = (block->address - address_) / kBlockBytes + 1; edge <= last; ++edge) across_[edge] = block;
}

inline void Arena::leave(const Block* block) {
  const uint64_t at = granule(block->address);
  starts_[at] = nullptr;
  start_bits_[at / 64] &= ~(uint64_t{1} << (at % 64));
}

}  // namespace um
