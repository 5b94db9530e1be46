// Arenas from the driver: managed memory with its advice, or plain device memory.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "memory/backend.h"
#include "memory/managed_heap.h"

namespace um {

// The plain memory of one device, summed over all of its heaps.
struct PlainMemory {
  uint64_t most_bytes, reserved_bytes = 0;
  uint64_t left_bytes() const { return most_bytes - std::min(reserved_bytes, most_bytes); }
};

class DriverArenas : public ArenaSource {
 public:
  DriverArenas(const Backend& backend, const um_placement& placement, const PlainMemory& plain)
      : backend_(backend), placement_(placement), plain_(plain) {}

  Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) override;
  bool release(Range range) noexcept override;
  // Tries again to return ranges that the driver refused to take back. Returns whether none remain.
  bool return_leftovers() noexcept;

 private:
  // Returns whether the arenas count against the process's limit of managed memory. A host of the device's own has a
  // limit of its own.
  bool counts() const { return placement_.memory == UM_MEMORY_MANAGED && !backend_.hooks->alone; }
  uint64_t within_limit(uint64_t least_bytes, uint64_t wanted_bytes) const;
  uint64_t affordable(uint64_t least_bytes, uint64_t wanted_bytes) const;
  uint64_t allocate(uint64_t bytes);
  driver::CUresult allocate_raw(uint64_t bytes, driver::CUdeviceptr* out) const;

  const Backend& backend_;
  const um_placement placement_;
  const PlainMemory& plain_;
  std::unordered_map<uint64_t, uint64_t> raw_;  // the driver's address of an arena, if alignment has changed it
  std::vector<Range> leftovers_;
};

}  // namespace um
