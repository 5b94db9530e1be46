// Addresses that an allocation keeps for its life. Code outside of ops that has seen an address may use it as an
// identity: so no other live allocation gets it, wherever the allocation itself lies by then.
//
// Invariants: a reserved range shows chunks only while its allocation lies there; while the allocation is on the host,
// or lies in another range, nothing is mapped at the reserved one. Example: a storage of 3 MiB takes two chunks through
// a range at A, and data_ptr() hands A out. When the storage is evicted, A is unmapped and stays reserved; two other
// chunks are mapped at A when the storage returns.
//
// Not thread-safe: the device's lock is held, and its context is current.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory/chunk_ranges.h"
#include "memory/fence.h"
#include "memory/managed_heap.h"

namespace um {

struct ReservedAddress {
  ChunkRange range;  // in whole chunks; it has chunks only while they are mapped, and a room while that is parked
  uint64_t offset_bytes = 0;  // of the allocation in it
  uint64_t chunks = 0;
  Block* whose = nullptr;
  bool returns = false;  // the allocation's next arrival is under it

  uint64_t address() const { return range.address + offset_bytes; }
  bool mapped() const { return !range.chunks.empty(); }
};

class ReservedAddresses {
 public:
  ReservedAddresses(ChunkRanges& ranges, ManagedHeap& rooms, Fences& fences, uint64_t chunk_bytes)
      : ranges_(ranges), rooms_(rooms), fences_(fences), chunk_bytes_(chunk_bytes) {}
  ReservedAddresses(const ReservedAddresses&) = delete;
  ReservedAddresses& operator=(const ReservedAddresses&) = delete;

  // Addresses of so many chunks that nothing is mapped at. Throws um::Error.
  ReservedAddress* reserve(Block* whose, uint64_t chunks, uint64_t offset_bytes);
  // Those of a range that the allocation has just given back: no other allocation gets it. All that used it has ended.
  // nullptr where the driver refuses, or memory is out.
  ReservedAddress* keep(Block* whose, ChunkRange* given, uint64_t offset_bytes) noexcept;
  // Maps these chunks there, shown as they are elsewhere. Throws um::Error, and then nothing is mapped.
  void map(ReservedAddress* reserved, const Chunks::List& chunks, RawAccess shown);
  // All that used it has ended. `room` is what lies there.
  void unmap(ReservedAddress* reserved, Block* room) noexcept;
  // The allocation is freed; what uses it runs until `last_use`.
  void release(ReservedAddress* reserved, Fences::Fence last_use) noexcept;
  // The allocation that owns it, wherever that lies; nullptr: none.
  ReservedAddress* find(uint64_t address) const;
  // Unmaps what was freed. False where `all` of it had to be, and something could not.
  bool sweep(bool all) noexcept;

 private:
  struct Ended {
    std::unique_ptr<ReservedAddress> reserved;
    Fences::Fence last_use;  // holds a reference
  };
  ReservedAddress* enter(std::unique_ptr<ReservedAddress> made);
  void unmap(ReservedAddress* reserved) noexcept;
  bool close(ReservedAddress* reserved) noexcept;

  ChunkRanges& ranges_;
  ManagedHeap& rooms_;
  Fences& fences_;
  const uint64_t chunk_bytes_;
  std::map<uint64_t, std::unique_ptr<ReservedAddress>> all_;  // by the address of the range
  std::vector<Ended> ended_;                                  // still mapped; has room for all
};

}  // namespace um
