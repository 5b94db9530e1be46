// Blocks that lie one after the other in segments: cut, joined with free neighbours, found by best fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace um::simulator {

struct Block {
  uint64_t address = 0, bytes = 0;
  int32_t previous = -1, next = -1;  // neighbours in the segment
  uint8_t pool = 0;
  bool is_free = false;
};

// Free blocks by size, then by address: the first that is large enough is the best fit.
struct FreeBlock {
  uint64_t bytes, address;
  int32_t block;
  bool operator<(const FreeBlock& other) const {
    return bytes != other.bytes ? bytes < other.bytes : address < other.address;
  }
};
using FreeBlocks = std::set<FreeBlock>;

class BlockList {
 public:
  static constexpr int32_t kNone = -1;

  Block& operator[](int32_t index) { return blocks_[static_cast<size_t>(index)]; }
  const Block& operator[](int32_t index) const { return blocks_[static_cast<size_t>(index)]; }

  // A new segment: one free block, listed in `free`.
  int32_t add(FreeBlocks& free, uint64_t address, uint64_t bytes, uint8_t pool) {
    const int32_t index = make();
    (*this)[index] = {address, bytes, kNone, kNone, pool, false};
    list(free, index);
    return index;
  }
  // The segment of one free block is gone.
  void remove(FreeBlocks& free, int32_t index) {
    unlist(free, index);
    unused_.push_back(index);
  }
  // The free block that fits best, taken out of `free`, or kNone.
  int32_t take(FreeBlocks& free, uint64_t bytes) {
    const auto found = free.lower_bound({bytes, 0, kNone});
    if (found == free.end()) return kNone;
    const int32_t index = found->block;
    free.erase(found);
    (*this)[index].is_free = false;
    free_segments_ -= fills_segment(index);
    return index;
  }
  // Keeps the first `bytes` of a block; the rest is a free block behind it.
  void cut(FreeBlocks& free, int32_t index, uint64_t bytes) {
    const int32_t rest = make();
    Block& block = (*this)[index];
    (*this)[rest] = {block.address + bytes, block.bytes - bytes, index, block.next, block.pool, false};
    if (block.next != kNone) (*this)[block.next].previous = rest;
    block.next = rest;
    block.bytes = bytes;
    list(free, rest);
  }
  // A block is free: joined with its free neighbours. Returns the block that it is now.
  int32_t give(FreeBlocks& free, int32_t index) {
    const int32_t previous = (*this)[index].previous, next = (*this)[index].next;
    if (next != kNone && (*this)[next].is_free) {
      unlist(free, next);
      join(index, next);
    }
    if (previous != kNone && (*this)[previous].is_free) {
      unlist(free, previous);
      join(previous, index);
      index = previous;
    }
    list(free, index);
    return index;
  }
  // How many segments are one free block each.
  int64_t free_segments() const { return free_segments_; }
  bool fills_segment(int32_t index) const { return (*this)[index].previous == kNone && (*this)[index].next == kNone; }

 private:
  int32_t make() {
    if (unused_.empty()) {
      blocks_.emplace_back();
      return static_cast<int32_t>(blocks_.size() - 1);
    }
    const int32_t index = unused_.back();
    unused_.pop_back();
    return index;
  }
  void list(FreeBlocks& free, int32_t index) {
    Block& block = (*this)[index];
    block.is_free = true;
    free.insert({block.bytes, block.address, index});
    free_segments_ += fills_segment(index);
  }
  void unlist(FreeBlocks& free, int32_t index) {
    Block& block = (*this)[index];
    block.is_free = false;
    free.erase({block.bytes, block.address, index});
    free_segments_ -= fills_segment(index);
  }
  void join(int32_t first, int32_t second) {
    Block& block = (*this)[first];
    block.bytes += (*this)[second].bytes;
    block.next = (*this)[second].next;
    if (block.next != kNone) (*this)[block.next].previous = first;
    unused_.push_back(second);
  }

  std::vector<Block> blocks_;
  std::vector<int32_t> unused_;
  int64_t free_segments_ = 0;
};

}  // namespace um::simulator
