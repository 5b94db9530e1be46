// The allocations that were freed during a step, for attributing the step's records to them. When the records are read,
// another allocation may lie at the same address.
//
// On the device an allocation lives longer than on the host, which frees it while its last op still waits in the
// stream. So this class identifies an allocation by its address and by an op, since ops have the same order on both.
//
// Example: A at address 0x1000 is freed after op 7, and B gets the same address for op 9. A record at 0x1000 during op
// 5 belongs to A, and one during op 9 to none of the ended allocations.
//
// Not thread-safe: callers hold the device's lock.
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
  // Notes an ended allocation. If memory for that is short, its records are attributed to the next allocation there.
  void freed(const Block& block, uint32_t last_op) noexcept;

  // Return the allocation that contained the address, or else the nearest one above it in the same 2 MiB, while that op
  // ran. nullptr: no ended allocation did.
  const Life* containing(uint64_t address, uint32_t op) const;
  const Life* nearest(uint64_t address, uint32_t op) const;
  // Returns whether an ended allocation lay in the 2 MiB around the address.
  bool knows(uint64_t address) const { return pages_.count(address / kBlockBytes) != 0; }

 private:
  static constexpr size_t kMostLives = size_t{1} << 18;

  std::vector<Life> lives_;  // in the order in which they ended
  std::unordered_map<uint64_t, std::vector<uint32_t>>
      pages_;  // number of a 2 MiB page -> the lives there, in that order
};

}  // namespace um
