// Memory for allocations that move: on the device in a range of chunks, on the host in pinned memory.
//
// An allocation's address is that of the place where it lies now (memory/places.h). This class provides the places and
// exchanges them. The caller copies the contents, orders streams, and re-points the owners of the address.
//
// Invariants: an allocation with a range lies on the device, and its `copy`, if any, is a parked place on the host. An
// allocation without a range lies on the host, and has no `copy`.
//
// Example: make_on_host(5 MiB) lies at a host address H. to_device() takes three chunks of 2 MiB, gives the allocation
// the address A of their range, and keeps H as its copy. to_host() returns it to H and gives the three chunks back.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <cstdint>

#include "memory/backend.h"
#include "memory/chunk_ranges.h"
#include "memory/fence.h"
#include "memory/host_copies.h"
#include "memory/layout.h"
#include "memory/managed_heap.h"
#include "memory/reserved_addresses.h"
#include "memory/shared_chunks.h"

namespace um {

// The places of an allocation: where it lies, and where it has a second place.
struct Residence {
  ChunkRange* range = nullptr;  // its place on the device; nullptr: it lies on the host
  Block* copy = nullptr;        // its second place, on the host, while it lies on the device; nullptr: none
  // The address that it keeps for life, if code outside of ops has one that is not its range's; nullptr: none. While
  // that address is mapped, the allocation lies there, and not in the range itself.
  ReservedAddress* reserved = nullptr;
};

class MovableMemory {
 public:
  // `blocks`: the descriptors of one device. Throws um::Error: UM_UNSUPPORTED if the device has no chunks,
  // UM_INVALID_ARGUMENT for a bad chunk size or budget.
  MovableMemory(um_device* device, const Backend& backend, Fences& fences, StablePool<Block>& blocks,
                const um_chunk_options& options);
  MovableMemory(const MovableMemory&) = delete;
  MovableMemory& operator=(const MovableMemory&) = delete;

  // Make an allocation of at least so many bytes, with an empty record. On the device, work that `first_user` is given
  // from now on runs after earlier users of the memory. On the host, this holds for `user`, or without one the CPU may
  // use the memory at once. `storage`: its future Record::storage. nullptr: there is no memory. Throw um::Error.
  [[nodiscard]] Block* make_on_device(uint64_t bytes, driver::CUstream first_user, Residence* residence,
                                      int32_t storage = -1);
  [[nodiscard]] Block* make_on_host(uint64_t bytes, Residence* residence, const driver::CUstream* user = nullptr);
  // `last_use` holds for both places.
  void free(Block* block, Residence* residence, Fences::Fence last_use) noexcept;

  // Moves an allocation from the host to the device; its place on the host becomes its copy. Returns false if there is
  // no memory. Throws um::Error.
  [[nodiscard]] bool to_device(Block* block, Residence* residence, driver::CUstream first_user);
  // Moves an allocation from the device to the place of its copy. `last_use` is of the place on the device; if that
  // address was handed out, `last_use` has passed.
  void to_host(Block* block, Residence* residence, Fences::Fence last_use) noexcept;
  // Adds a place on the host to an allocation on the device, for work that the stream is given from now on. Returns
  // false if there is no memory. Throws um::Error.
  [[nodiscard]] bool add_copy(const Block& block, Residence* residence, driver::CUstream user);
  void drop_copy(Residence* residence, Fences::Fence last_use) noexcept;

  // Returns the address that the allocation has for life from now on, to be compared with other addresses.
  [[nodiscard]] uint64_t reserve(Block* block, Residence* residence);
  // Moves an allocation on the device to its address for life. Returns false if it lies in another part of a chunk than
  // that address, or if nothing more can be mapped. Throws um::Error.
  [[nodiscard]] bool to_reserved(Block* block, Residence* residence);
  void from_reserved(Block* block, Residence* residence) noexcept;
  // Returns whether it lies at an address that must be unmapped when it is evicted.
  static bool at_reserved(const Residence& residence) {
    return residence.range != nullptr &&
           (residence.range->handed_out || (residence.reserved != nullptr && residence.reserved->mapped()));
  }
  // Returns whether it lies in the same part of its chunk as its address for life.
  static bool fits_reserved(const Block& block, const Residence& residence) {
    return block.address - residence.range->address == residence.reserved->offset_bytes;
  }
  // Calls RangeMapping::show for the addresses where it lies.
  void show(const Residence& residence, RawAccess access) {
    const bool there = residence.reserved != nullptr && residence.reserved->mapped();
    ranges.mapping.show(there ? &residence.reserved->range : residence.range, access);
  }

  // Calls Layout::in_the_way or SharedChunks::in_the_way, depending on the size.
  std::vector<const ChunkRange*> in_the_way(uint64_t bytes, int32_t storage) {
    return shares(bytes) ? shared.in_the_way(storage) : layout.in_the_way(chunks_of(bytes), storage);
  }
  // From now on its device memory may be handed on, after a copy of so many bytes (0: no copy), or not any more.
  void leaves(const ChunkRange* range, uint64_t bytes) noexcept {
    range->shared != nullptr ? shared.leaves(range, bytes) : layout.leaves(range, bytes);
  }
  void cancel_departure(const ChunkRange* range) noexcept {
    range->shared != nullptr ? shared.cancel_departure(range) : layout.cancel_departure(range);
  }

  // Returns whether an allocation of this size takes a part of a shared chunk. If tests have small storages evicted too
  // (UM_SMALL_LEAVE), the smallest get whole chunks: in a shared one, an allocation that cannot move would keep them
  // there.
  bool shares(uint64_t bytes) const {
    return bytes <= shared.most_bytes() && (least_leaving_bytes_ > 0 || bytes >= kLeastLeavingBytes);
  }
  // Returns how many free chunks an allocation of this size needs.
  uint64_t lacking(uint64_t bytes) const { return shares(bytes) && shared.has_room(bytes) ? 0 : chunks_of(bytes); }
  // Returns the same for an allocation that returns from the host.
  uint64_t lacking(const Block& block, const Residence& residence) const {
    const uint64_t bytes = block.record.bytes, unit = wanted_unit(residence, bytes);
    if (unit == SharedChunks::kAnyUnit) return lacking(bytes);
    return shared.has_room(bytes, unit) ? 0 : 1;
  }
  uint64_t chunks_of(uint64_t bytes) const { return (bytes + chunk_bytes_ - 1) / chunk_bytes_; }
  // Returns the device memory that an allocation takes; 0: it is small, and is not evicted while small ones fit their
  // limit.
  uint64_t room_of(uint64_t bytes) const {
    if (bytes < least_leaving_bytes_) return 0;
    return shares(bytes) ? shared.part_bytes(bytes) : chunks_of(bytes) * chunk_bytes_;
  }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Returns a budget in whole chunks. Throws um::Error if it is less than one.
  uint64_t whole_chunks(uint64_t budget_bytes) const;
  // Smaller allocations are not evicted while all of them take at most kMostSmallBytes.
  uint64_t least_leaving_bytes() const { return least_leaving_bytes_; }
  static constexpr uint64_t kLeastLeavingBytes = uint64_t{64} << 10;
  static constexpr uint64_t kMostSmallBytes = uint64_t{12} << 20;
  // Gives all unused memory back to the driver. Returns false if the driver refused.
  [[nodiscard]] bool give_back() noexcept;
  // Calls `each` for every arena, in no order. Most blocks there may be parked.
  template <class Each>
  void each_arena(const Each& each) const {
    for (const Arena* arena : rooms_.arenas()) each(*arena);
    for (const Arena* arena : copies.arenas()) each(*arena);
  }

 private:
  class Addresses : public ArenaSource {
   public:
    explicit Addresses(const Backend& backend) : backend_(backend) {}
    Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) override;
    bool release(Range range) noexcept override;

   private:
    const Backend& backend_;
  };

  ChunkRange* take(uint64_t bytes, driver::CUstream first_user, int32_t storage, uint64_t wanted_unit);
  void give(ChunkRange* range, Fences::Fence last_use) noexcept;

  uint64_t wanted_unit(const Residence& residence, uint64_t bytes) const;

  const uint64_t chunk_bytes_, least_leaving_bytes_;
  Addresses addresses_;
  ManagedHeap rooms_;

 public:
  ChunkRanges ranges;
  Layout layout{ranges};
  SharedChunks shared;
  ReservedAddresses reserved;
  HostCopies copies;
  Level small_chunks;  // chunks of small allocations, which are never evicted
};

}  // namespace um
