#include "memory/managed_heap.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/address_map.h"

namespace um {
namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// The arenas of all devices. They are never destroyed, because AddressMap::find may return a pointer to a closed one.
struct Arenas {
  std::mutex mutex;
  StablePool<Arena> pool;
};
Arenas& all_arenas() {
  static Arenas* arenas = new Arenas;
  return *arenas;
}

Arena* take_arena() {
  const std::lock_guard<std::mutex> lock(all_arenas().mutex);
  all_arenas().pool.prepare(1);
  return all_arenas().pool.take();
}

void give_arena(Arena* arena) noexcept {
  const std::lock_guard<std::mutex> lock(all_arenas().mutex);
  all_arenas().pool.give(arena);
}

}  // namespace

ManagedHeap::ManagedHeap(um_device* device, const um_placement& where, ArenaSource& source, StablePool<Block>& blocks,
                         uint64_t first_arena_bytes, uint64_t unit_bytes)
    : placement(where),
      device_(device),
      source_(source),
      blocks_(blocks),
      first_arena_bytes_(first_arena_bytes),
      next_arena_bytes_(first_arena_bytes),
      unit_bytes_(unit_bytes) {}

// Blocks of a unit need no alignment: an arena is cut into whole units.
uint64_t ManagedHeap::alignment_of(uint64_t bytes) const {
  return bytes >= kBlockBytes && unit_bytes_ == kGranuleBytes ? kBlockBytes : kGranuleBytes;
}

bool ManagedHeap::has_room(uint64_t bytes) const {
  return free_lists_.find(round_up(bytes, unit_bytes_), alignment_of(bytes)) != nullptr;
}

Block* ManagedHeap::allocate(uint64_t bytes) {
  const uint64_t alignment = alignment_of(bytes);
  if (bytes > FreeLists::kMostBytes - kBlockBytes - unit_bytes_) {
    throw Error(UM_OUT_OF_HOST_MEMORY,
                "a request of " + std::to_string(bytes) + " bytes is more than any machine holds");
  }
  const uint64_t rounded = round_up(bytes, unit_bytes_);
  blocks_.prepare(3);  // for the arena's first block, and the remainders on both sides of this one
  Block* block = free_lists_.find(rounded, alignment);
  if (block == nullptr) block = grow(rounded);
  const uint64_t start = FreeLists::aligned_start(*block, alignment);
  if (start > block->address) free_lists_.insert(insert_below(block, block->address, start - block->address));
  const uint64_t left = block->end() - (start + rounded);
  if (left == 0) {
    free_lists_.remove(block);
    block->address = start;
    block->bytes = rounded;
    // The free block keeps its descriptor, and usually its list: this is the hot path.
  } else {
    Block* taken = insert_below(block, start, rounded);
    free_lists_.resize(block, start + rounded, left);
    block = taken;
  }
  block->free = false;
  block->arena->enter(block);
  return block;
}

// Adds an arena, and returns it as one free block.
Block* ManagedHeap::grow(uint64_t bytes) {
  const uint64_t least = round_up(bytes, kBlockBytes);
  const bool own = least > next_arena_bytes_;
  arenas_.reserve(arenas_.size() + 1);
  Arena* arena = take_arena();
  const OnError undo_taking([&] { give_arena(arena); });
  const ArenaSource::Range range = source_.acquire(least, own ? least : next_arena_bytes_);
  const OnError undo_acquiring([&] { source_.release(range); });
  arena->open(device_, this, range.address, range.bytes);
  const OnError undo_opening([&] { arena->close(); });
  address_map().enter(arena);
  Block* block = blocks_.take();
  *block = Block{};
  block->address = range.address;
  block->bytes = range.bytes;
  block->arena = arena;
  block->free = true;
  arena->first = block;
  free_lists_.insert(block);
  arenas_.push_back(arena);
  reserved_bytes_ += range.bytes;
  // Only managed arenas grow. Plain memory takes device memory at once, and no other role could use the rest of an
  // arena.
  if (!own && placement.memory == UM_MEMORY_MANAGED)
    next_arena_bytes_ = std::min(2 * next_arena_bytes_, kMostArenaBytes);
  return block;
}

// Returns a free block below `next` that is linked to its neighbours but in no list. The caller adjusts `next`.
Block* ManagedHeap::insert_below(Block* next, uint64_t address, uint64_t bytes) noexcept {
  Block* block = blocks_.take();
  block->address = address;
  block->bytes = bytes;
  block->arena = next->arena;
  block->free = true;
  block->previous = next->previous;
  block->next = next;
  (block->previous != nullptr ? block->previous->next : block->arena->first) = block;
  next->previous = block;
  return block;
}

// Removes the block from the chain of neighbours, and gives its descriptor back to the pool.
void ManagedHeap::unlink(Block* block) noexcept {
  (block->previous != nullptr ? block->previous->next : block->arena->first) = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
  block->arena = nullptr;
  blocks_.give(block);
}

void ManagedHeap::free(Block* block, bool keeps_empty) noexcept {
  Arena* arena = block->arena;
  arena->leave(block);
  block->free = true;
  block->parked = false;
  Block* below = block->previous != nullptr && block->previous->free ? block->previous : nullptr;
  Block* above = block->next != nullptr && block->next->free ? block->next : nullptr;
  if (above != nullptr) {
    uint64_t start = block->address;
    if (below != nullptr) {
      start = below->address;
      free_lists_.remove(below);
      unlink(below);
    }
    free_lists_.resize(above, start, above->end() - start);
    unlink(block);
  } else if (below != nullptr) {
    free_lists_.resize(below, below->address, below->bytes + block->bytes);
    unlink(block);
  } else {
    free_lists_.insert(block);
  }
  if (!arena->empty() || keeps_empty) return;
  for (Arena* other : arenas_) {
    if (other == arena || !other->empty()) continue;
    give_back(other->bytes() < arena->bytes() ? other : arena);
    return;
  }
}

bool ManagedHeap::give_back(Arena* arena) noexcept {
  // The map is changed first: once the driver has the range back, another device may enter it.
  address_map().leave(arena);
  if (!source_.release({arena->address(), arena->bytes()})) {
    address_map().restore(arena);
    return false;
  }
  free_lists_.remove(arena->first);
  blocks_.give(arena->first);
  reserved_bytes_ -= arena->bytes();
  arenas_.erase(std::find(arenas_.begin(), arenas_.end(), arena));
  arena->close();
  give_arena(arena);
  return true;
}

bool ManagedHeap::trim() noexcept {
  bool all = true;
  for (size_t i = arenas_.size(); i-- > 0;) {
    if (arenas_[i]->empty()) all = give_back(arenas_[i]) && all;
  }
  if (arenas_.empty()) next_arena_bytes_ = first_arena_bytes_;  // otherwise arenas would double from session to session
  return all;
}

}  // namespace um
