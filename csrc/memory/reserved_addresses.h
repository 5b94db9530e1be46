// Addresses that an allocation keeps for its life. Code outside of ops that has seen an address may use it as an
// identity, so no other live allocation gets it, even after the allocation has moved.
//
// Invariants: a reserved range shows chunks only while its allocation lies there. While the allocation is on the host,
// or lies in another range, nothing is mapped at the reserved one.
//
// Example: a storage of 3 MiB takes two chunks through a range at A, and data_ptr() hands out A. When the storage is
// evicted, A is unmapped and remains reserved. When the storage is swapped in, any two chunks are mapped at A.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
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
  ChunkRange range;           // its chunks are mapped ones only; its `room` is set only while that block is parked
  uint64_t offset_bytes = 0;  // of the allocation's address in the range
  uint64_t chunks = 0;
  Block* whose = nullptr;
  bool returns = false;  // the next swap-in of the allocation is to this address

  uint64_t address() const { return range.address + offset_bytes; }
  bool mapped() const { return !range.chunks.empty(); }
};

class ReservedAddresses {
 public:
  ReservedAddresses(ChunkRanges& ranges, ManagedHeap& rooms, Fences& fences, uint64_t chunk_bytes)
      : ranges_(ranges), rooms_(rooms), fences_(fences), chunk_bytes_(chunk_bytes) {}
  ReservedAddresses(const ReservedAddresses&) = delete;
  ReservedAddresses& operator=(const ReservedAddresses&) = delete;

  // Reserves addresses of so many chunks, at which nothing is mapped. Throws um::Error.
  ReservedAddress* reserve(Block* whose, uint64_t chunks, uint64_t offset_bytes);
  // Reserves the addresses of a range that the allocation has just given back, and whose last use has passed. nullptr:
  // the driver refused, or memory is out.
  ReservedAddress* keep(Block* whose, ChunkRange* given, uint64_t offset_bytes) noexcept;
  // Maps these chunks at the reserved addresses, with the access that they have elsewhere. Throws um::Error, and then
  // nothing is mapped.
  void map(ReservedAddress* reserved, const Chunks::List& chunks, RawAccess shown);
  // Unmaps the addresses, whose last use has passed. `room` is the block that is parked there.
  void unmap(ReservedAddress* reserved, Block* room) noexcept;
  // Ends a reservation, because the allocation is freed. Its last user's work has ended when `last_use` passes.
  void release(ReservedAddress* reserved, Fences::Fence last_use) noexcept;
  // Returns the reservation that contains an address; nullptr: there is none.
  ReservedAddress* find(uint64_t address) const;
  // Unmaps ended reservations whose last use has passed. `all`: waits for all of them. Returns false if any remain.
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
  std::vector<Ended> ended_;                                  // still mapped; has capacity for all
};

}  // namespace um
