// The allocations that ended during a step. When the step's records are read, another may lie at their addresses; and
// on the device an allocation lives longer than on the host, which frees it while its last op still waits in the
// stream. So lives are told apart by ops, which are in the same order on both. Not thread-safe: the device's lock is
// held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory/arena.h"

namespace um {

class BlockHistory {
 public:
  struct Life {
    uint64_t address, end;
    uint32_t last_op;  // index in the step of the last op that can have used it
    Record record;
  };

  void clear() noexcept;
  // Forgets what there is no memory for: its records are then told of whoever lies there next.
  void freed(const Block& block, uint32_t last_op) noexcept;

  // The allocation that held the address, or else the nearest above it in the same 2 MiB, while that op ran; nullptr
  // when none of those that ended did.
  const Life* containing(uint64_t address, uint32_t op) const;
  const Life* nearest(uint64_t address, uint32_t op) const;
  // Whether any lay in the 2 MiB around the address.
  bool knows(uint64_t address) const { return pages_.count(address / kBlockBytes) != 0; }

 private:
  static constexpr size_t kMostLives = size_t{1} << 18;

  std::vector<Life> lives_;                                    // in the order in which they ended
  std::unordered_map<uint64_t, std::vector<uint32_t>> pages_;  // number of 2 MiB -> who lay there, in that order
};

}  // namespace um
