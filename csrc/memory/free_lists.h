// Free blocks by size: two-level segregated fit (M. Masmano, I. Ripoll, A. Crespo, J. Real: "TLSF: a new dynamic memory
// allocator for real-time systems", ECRTS 2004). First level: powers of two; second: 32 equal steps of each.
#pragma once

#include <cstdint>

#include "memory/arena.h"

namespace um {

class FreeLists {
 public:
  static constexpr uint64_t kMostBytes = (uint64_t{1} << 32) * kGranuleBytes;  // blocks are smaller than this

  void insert(Block* block);
  void remove(Block* block);
  // Moves the edges of a free block; it changes lists only when its size asks for that, which for large ones is rare.
  void resize(Block* block, uint64_t address, uint64_t bytes);
  // A block that holds `bytes` (granules, not 0) from a multiple of `alignment` on, or nullptr. Constant time: of the
  // lists whose blocks may be too small or badly placed only the first few entries are looked at.
  Block* find(uint64_t bytes, uint64_t alignment) const;

  static uint64_t aligned_start(const Block& block, uint64_t alignment) {
    return (block.address + alignment - 1) & ~(alignment - 1);
  }

 private:
  static constexpr uint32_t kStepBits = 5, kSteps = 1u << kStepBits;
  static constexpr uint32_t kPowers = 33 - kStepBits;
  static constexpr int kEntriesLookedAt = 8;

  struct List {
    uint32_t power, step;
    bool operator==(List other) const { return power == other.power && step == other.step; }
  };
  static List list_of(uint64_t granules);
  static List list_above(uint64_t granules);
  // Moves `list` to the first one from there on that has a block; nullptr when there is none.
  Block* head_from(List& list) const;
  static Block* fitting(Block* list, uint64_t bytes, uint64_t alignment);

  uint32_t power_bits_ = 0;  // powers with a block
  uint32_t step_bits_[kPowers] = {};
  Block* head_[kPowers][kSteps] = {};
};

}  // namespace um
