// One range of device memory and the blocks it is cut into. Everything known about a block lies out of band: a word
// written into managed memory would be a page fault.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "um/model.h"  // kBlockBytes

struct um_device;

namespace um {

inline constexpr uint64_t kGranuleBytes = 512;  // every block starts on one: what cudaMalloc's callers rely on

class Arena;
class ManagedHeap;

// What is known of an allocation.
struct Record {
  uint64_t serial = 0;
  uint64_t bytes = 0;  // as requested
  uint32_t role = 0, name = 0;
  uint32_t birth_step = 0, birth_op_index = 0, birth_op = 0, birth_module = 0;
  int32_t storage = -1;     // what it is called from step to step (memory/layout.h); -1: nothing
  bool persistent = false;  // it is the same one in every step (engine/matching/persistent_allocations.h)
};

// What the owner above keeps with an allocation: all 0 when that begins.
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

// A run of granules of one arena, free or allocated. Neighbours are linked, so that free ones merge in constant time.
struct Block {
  uint64_t address = 0, bytes = 0;
  Arena* arena = nullptr;
  Block* previous = nullptr;
  Block* next = nullptr;
  Block* previous_free = nullptr;  // both lists of FreeLists; `next_free` is also StablePool's
  Block* next_free = nullptr;
  bool free = false;
  bool parked = false;  // nobody's allocation: a place that is kept for one (memory/places.h)
  Record record;
  OwnersSlot owners;

  uint64_t end() const { return address + bytes; }
  // Nothing else is allocated in its arena.
  bool alone() const {
    return (previous == nullptr || (previous->free && previous->previous == nullptr)) &&
           (next == nullptr || (next->free && next->next == nullptr));
  }
};

// Recycled through a StablePool: `device` may be read at any time, the rest under the device's lock only.
class Arena {
 public:
  // Throws um::Error when the tables do not fit; `address` and `bytes` are multiples of 2 MiB.
  void open(um_device* owner, ManagedHeap* of, uint64_t address, uint64_t bytes);
  // No block is entered any more.
  void close() noexcept;

  // Every allocated block is entered, free and parked ones are not: cutting and merging free memory touches no table.
  void enter(Block* block);
  void leave(const Block* block);
  // The allocated block that lies at or above `at` first, within the same 2 MiB page; nullptr when there is none.
  Block* nearest(uint64_t at) const;
  // The allocated block that starts at, or contains, `at` (which lies in this arena); nullptr when there is none.
  Block* starting_at(uint64_t at) const { return at % kGranuleBytes == 0 ? starts_[granule(at)] : nullptr; }
  Block* containing(uint64_t at) const;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return first->free && first->next == nullptr; }
  // Every allocated block that is not parked, in order of address.
  template <class Each>
  void each_block(const Each& each) const {
    for (Block* block = first; block != nullptr; block = block->next) {
      if (!block->free && !block->parked) each(*block);
    }
  }

  std::atomic<um_device*> device{nullptr};
  ManagedHeap* heap = nullptr;
  Block* first = nullptr;  // at the lowest address; never nullptr while open
  Arena* next_free = nullptr;
  uint64_t serial = 0;  // tells this life of the arena from earlier ones at the same address

 private:
  uint64_t granule(uint64_t at) const { return (at - address_) / kGranuleBytes; }
  void drop_tables() noexcept;

  uint64_t address_ = 0, bytes_ = 0;
  // One lazily committed mapping: a pointer a granule (allocated block that starts there), a pointer for each 2 MiB
  // (the block that reached across its lower edge when it was entered last: checked before use), a bit a granule.
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
