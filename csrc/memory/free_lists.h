// Free blocks by size, as two-level segregated fit (M. Masmano, I. Ripoll, A. Crespo, J. Real: "TLSF: a new dynamic
// memory allocator for real-time systems", ECRTS 2004). The first level has powers of two, the second 32 equal steps of
// each.
#pragma once

#include <cstdint>

#include "memory/arena.h"

namespace um {

class FreeLists {
 public:
  static constexpr uint64_t kMostBytes = (uint64_t{1} << 32) * kGranuleBytes;  // blocks are smaller than this

  void insert(Block* block);
  void remove(Block* block);
  // Moves the edges of a free block. It moves to another list only if its size requires that, which is rare for large
  // blocks.
  void resize(Block* block, uint64_t address, uint64_t bytes);
  // Returns a block that has `bytes` (whole granules, not 0) from a multiple of `alignment` on; nullptr: none was
  // found. Takes constant time: of lists whose blocks may be too small or misaligned it tries only the first few
  // entries.
  Block* find(uint64_t bytes, uint64_t alignment) const;

  static uint64_t aligned_start(const Block& block, uint64_t alignment) {
    return (block.address + alignment - 1) & ~(alignment - 1);
  }

 private:
  static constexpr uint32_t kStepBits = 5, kSteps = 1u << kStepBits;
  static constexpr uint32_t kPowers = 33 - kStepBits;
  static constexpr int kEntriesLookedAt = 8;

  static uint32_t log2_floor(uint64_t value) { return 63u - static_cast<uint32_t>(__builtin_clzll(value)); }
  static uint32_t lowest_bit(uint32_t bits) { return static_cast<uint32_t>(__builtin_ctz(bits)); }

  struct List {
    uint32_t power, step;
    bool operator==(List other) const { return power == other.power && step == other.step; }
  };
  static List list_of(uint64_t granules);
  static List list_above(uint64_t granules);
  // Moves `list` to the first list at or after it that has a block, and returns that block; nullptr: there is none.
  Block* head_from(List& list) const;
  static Block* fitting(Block* list, uint64_t bytes, uint64_t alignment);

  uint32_t power_bits_ = 0;  // a bit for each power that has a block
  uint32_t step_bits_[kPowers] = {};
  Block* head_[kPowers][kSteps] = {};
};

// These functions are inline, because an allocation and its free together take a few dozen instructions.

inline FreeLists::List FreeLists::list_of(uint64_t granules) {
  if (granules < kSteps) return {0, static_cast<uint32_t>(granules)};
  const uint32_t log = log2_floor(granules);
  return {log - kStepBits + 1, static_cast<uint32_t>(granules >> (log - kStepBits)) - kSteps};
}

// Returns the first list in which every block has at least `granules`.
inline FreeLists::List FreeLists::list_above(uint64_t granules) {
  if (granules < kSteps) return list_of(granules);
  return list_of(granules + (uint64_t{1} << (log2_floor(granules) - kStepBits)) - 1);
}

inline void FreeLists::insert(Block* block) {
  const List list = list_of(block->bytes / kGranuleBytes);
  Block*& head = head_[list.power][list.step];
  block->previous_free = nullptr;
  block->next_free = head;
  if (head != nullptr) head->previous_free = block;
  head = block;
  power_bits_ |= 1u << list.power;
  step_bits_[list.power] |= 1u << list.step;
}

inline void FreeLists::remove(Block* block) {
  if (block->next_free != nullptr) block->next_free->previous_free = block->previous_free;
  if (block->previous_free != nullptr) {
    block->previous_free->next_free = block->next_free;
    return;
  }
  const List list = list_of(block->bytes / kGranuleBytes);
  head_[list.power][list.step] = block->next_free;
  if (block->next_free != nullptr) return;
  step_bits_[list.power] &= ~(1u << list.step);
  if (step_bits_[list.power] == 0) power_bits_ &= ~(1u << list.power);
}

inline void FreeLists::resize(Block* block, uint64_t address, uint64_t bytes) {
  const bool same_list = list_of(block->bytes / kGranuleBytes) == list_of(bytes / kGranuleBytes);
  if (!same_list) remove(block);
  block->address = address;
  block->bytes = bytes;
  if (!same_list) insert(block);
}

inline Block* FreeLists::head_from(List& list) const {
  if (list.power >= kPowers) return nullptr;
  uint32_t steps = list.step < kSteps ? step_bits_[list.power] & (~0u << list.step) : 0;
  if (steps == 0) {
    const uint32_t powers = list.power + 1 < kPowers ? power_bits_ & (~0u << (list.power + 1)) : 0;
    if (powers == 0) return nullptr;
    list.power = lowest_bit(powers);
    steps = step_bits_[list.power];
  }
  list.step = lowest_bit(steps);
  return head_[list.power][list.step];
}

inline Block* FreeLists::fitting(Block* list, uint64_t bytes, uint64_t alignment) {
  for (int looked_at = 0; list != nullptr && looked_at < kEntriesLookedAt; ++looked_at, list = list->next_free) {
    if (aligned_start(*list, alignment) + bytes <= list->end()) return list;
  }
  return nullptr;
}

inline Block* FreeLists::find(uint64_t bytes, uint64_t alignment) const {
  const uint64_t granules = bytes / kGranuleBytes;
  // The same sizes are allocated in every step, so the list of exactly this size is tried first, although it also has
  // blocks that are too small.
  const List own = list_of(granules);
  if (Block* block = fitting(head_[own.power][own.step], bytes, alignment)) return block;
  // From here on all blocks are large enough but may be misaligned, up to the list in which any alignment fits.
  List list = list_above(granules);
  const List any = list_above(granules + alignment / kGranuleBytes - 1);
  for (Block* head = head_from(list); head != nullptr; ++list.step, head = head_from(list)) {
    if (list.power > any.power || (list.power == any.power && list.step >= any.step)) return head;
    if (Block* block = fitting(head, bytes, alignment)) return block;
  }
  return nullptr;
}

}  // namespace um
