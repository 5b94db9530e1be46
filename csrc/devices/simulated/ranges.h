// The life of a simulated device's ranges, in whole blocks, and memory of it that has no address.
#pragma once

#include <cstdint>

#include "devices/simulated/migrator.h"
#include "um/block_ranges.h"

namespace um::simulator {

class Ranges {
 public:
  // The table and the migrator are borrowed. `most_managed_blocks`: the host's memory, which limits managed ranges.
  Ranges(BlockTable& table, Migrator& migrator, uint32_t chunks, uint64_t most_managed_blocks)
      : blocks_(table), migrator_(migrator), chunks_(chunks), most_managed_blocks_(most_managed_blocks) {}

  // 0 when it does not fit.
  uint64_t allocate_managed(uint64_t bytes);
  uint64_t allocate_plain(uint64_t bytes);
  // Addresses alone.
  uint64_t reserve(uint64_t bytes);
  bool free(uint64_t address);
  // Memory of the device that has no address. False, and nothing is taken, where there is less.
  bool take_physical(uint64_t blocks);
  void give_physical(uint64_t blocks);

  uint64_t free_bytes() const { return migrator_.plain.free_chunks() * kBlockBytes; }
  uint64_t capacity_bytes() const { return chunks_ * kBlockBytes; }

 private:
  uint32_t allocate(uint64_t bytes, Kind kind);
  void release_block(uint32_t index);

  BlockTable& blocks_;
  Migrator& migrator_;
  BlockRanges taken_{kSpanBlocks};
  const uint32_t chunks_;
  const uint64_t most_managed_blocks_;
  uint64_t managed_blocks_ = 0;
};

}  // namespace um::simulator
