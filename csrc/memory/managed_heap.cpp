#include "memory/managed_heap.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "memory/address_map.h"
#include "memory/error.h"

namespace um {
namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// All devices' arenas, never destroyed: AddressMap::find may hand out a pointer to a closed one.
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

ManagedHeap::ManagedHeap(um_device* device, ArenaSource& source, StablePool<Block>& blocks, uint64_t first_arena_bytes)
    : device_(device), source_(source), blocks_(blocks), next_arena_bytes_(first_arena_bytes) {}

Block* ManagedHeap::allocate(uint64_t bytes) {
  const uint64_t alignment = bytes >= kBlockBytes ? kBlockBytes : kGranuleBytes;
  if (bytes > FreeLists::kMostBytes - kBlockBytes) {
    throw Error(UM_OUT_OF_HOST_MEMORY, "a request of " + std::to_string(bytes) + " bytes is more than any machine holds");
  }
  const uint64_t rounded = round_up(bytes, kGranuleBytes);
  blocks_.prepare(3);  // the arena's first block, and what is left on either side of this one
  Block* block = free_lists_.find(rounded, alignment);
  if (block == nullptr) block = grow(rounded);
  free_lists_.remove(block);
  const uint64_t start = FreeLists::aligned_start(*block, alignment);
  if (start > block->address) {
    Block* below = block;
    block = split(below, start);
    free_lists_.insert(below);
  }
  if (block->bytes > rounded) free_lists_.insert(split(block, block->address + rounded));
  block->free = false;
  block->arena->enter(block);
  return block;
}

// A new arena, as one free block.
Block* ManagedHeap::grow(uint64_t bytes) {
  const uint64_t least = round_up(bytes, kBlockBytes);
  const bool own = least > next_arena_bytes_;
  arenas_.reserve(arenas_.size() + 1);
  Arena* arena = take_arena();
  ArenaSource::Range range{0, 0};
  bool opened = false;
  try {
    range = source_.acquire(least, own ? least : next_arena_bytes_);
    arena->open(device_, this, range.address, range.bytes);
    opened = true;
    address_map().enter(arena);
  } catch (...) {
    if (opened) arena->close();
    if (range.bytes != 0) source_.release(range);
    give_arena(arena);
    throw;
  }
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
  if (!own) next_arena_bytes_ = std::min(2 * next_arena_bytes_, kMostArenaBytes);
  return block;
}

// Cuts the part from `at` on off a block that is in no free list, and returns it: free, in no list either.
Block* ManagedHeap::split(Block* block, uint64_t at) noexcept {
  Block* upper = blocks_.take();
  upper->address = at;
  upper->bytes = block->end() - at;
  upper->arena = block->arena;
  upper->free = true;
  upper->previous = block;
  upper->next = block->next;
  if (upper->next != nullptr) upper->next->previous = upper;
  block->next = upper;
  block->bytes -= upper->bytes;
  return upper;
}

// The neighbour above becomes part of `block`; neither is in a free list.
void ManagedHeap::merge_next(Block* block) noexcept {
  Block* next = block->next;
  block->bytes += next->bytes;
  block->next = next->next;
  if (block->next != nullptr) block->next->previous = block;
  next->arena = nullptr;
  blocks_.give(next);
}

void ManagedHeap::free(Block* block) noexcept {
  Arena* arena = block->arena;
  arena->leave(block);
  block->free = true;
  if (block->next != nullptr && block->next->free) {
    free_lists_.remove(block->next);
    merge_next(block);
  }
  if (block->previous != nullptr && block->previous->free) {
    block = block->previous;
    free_lists_.remove(block);
    merge_next(block);
  }
  free_lists_.insert(block);
  if (!arena->empty()) return;
  for (Arena* other : arenas_) {
    if (other == arena || !other->empty()) continue;
    give_back(other->bytes() < arena->bytes() ? other : arena);
    return;
  }
}

bool ManagedHeap::give_back(Arena* arena) noexcept {
  // The map first: once the driver has the range back, another device may enter it.
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
  return all;
}

}  // namespace um
