// Memory for allocations that move: on the device in a range of chunks, on the host in page-locked memory. An
// allocation's addresses are those of where it lies (memory/places.h); whoever shows them to others is told by whoever
// moves it. What is copied when, and who must wait for that, is the caller's.
//
// Not thread-safe: the device's lock is held, and its context is current.
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

// Where an allocation lies, and where besides it has a place.
struct Residence {
  ChunkRange* range = nullptr;  // nullptr: it lies on the host
  Block* copy = nullptr;        // on the host, while it lies on the device; nullptr: none
  // Its address for life, where code outside of ops has one that is not its range's; nullptr: none. On the device it
  // lies there, and not in the range itself, while that is mapped.
  ReservedAddress* reserved = nullptr;
};

class MovableMemory {
 public:
  // `blocks`: the descriptors of one device. Throws um::Error: UM_UNSUPPORTED where the device cannot do it,
  // UM_INVALID_ARGUMENT for a bad chunk size or budget.
  MovableMemory(um_device* device, const Backend& backend, Fences& fences, StablePool<Block>& blocks,
                const um_chunk_options& options);
  MovableMemory(const MovableMemory&) = delete;
  MovableMemory& operator=(const MovableMemory&) = delete;

  // An allocation of at least so many bytes, of which nothing is remembered yet: on the device, where what `first_user`
  // is given from now on runs after whoever was there; or on the host, for what `user` is given, or where the CPU may
  // use it at once. nullptr: there is no room. `storage`: what it will be called (Record). Throw um::Error.
  Block* make_on_device(uint64_t bytes, driver::CUstream first_user, Residence* residence, int32_t storage = -1);
  Block* make_on_host(uint64_t bytes, Residence* residence, const driver::CUstream* user = nullptr);
  // `last_use`: of either place.
  void free(Block* block, Residence* residence, Fences::Fence last_use) noexcept;

  // From the host to the device; its place on the host becomes its copy. False: there is no room. Throws um::Error.
  bool to_device(Block* block, Residence* residence, driver::CUstream first_user);
  // From the device to the place of its copy; `last_use` of the one on the device. Where its address was handed out,
  // all of that has ended.
  void to_host(Block* block, Residence* residence, Fences::Fence last_use) noexcept;
  // A place on the host for what lies on the device: used by what the stream is given from now on. False: there is no
  // room. Throws um::Error.
  bool add_copy(const Block& block, Residence* residence, driver::CUstream user);
  void drop_copy(Residence* residence, Fences::Fence last_use) noexcept;

  // ---- addresses that code outside of ops has ----
  // The one that the allocation has for its life from now on, to be compared with others.
  uint64_t reserve(Block* block, Residence* residence);
  // On the device it lies at its address for life from now on. False: it cannot, as it lies in another part of a chunk,
  // or nothing more can be mapped. Throws um::Error.
  bool to_reserved(Block* block, Residence* residence);
  void from_reserved(Block* block, Residence* residence) noexcept;
  // Whether it lies at an address that its memory loses when it leaves.
  static bool at_reserved(const Residence& residence) {
    return residence.range != nullptr &&
           (residence.range->handed_out || (residence.reserved != nullptr && residence.reserved->mapped()));
  }
  // Whether it lies in the part of its chunk where its reserved address is.
  static bool fits_reserved(const Block& block, const Residence& residence) {
    return block.address - residence.range->address == residence.reserved->offset_bytes;
  }
  // RangeMapping::show, of the addresses where it lies.
  void show(const Residence& residence, RawAccess access) {
    const bool there = residence.reserved != nullptr && residence.reserved->mapped();
    ranges.mapping.show(there ? &residence.reserved->range : residence.range, access);
  }

  // Layout::in_the_way, of the memory for so many bytes.
  std::vector<const ChunkRange*> in_the_way(uint64_t bytes, int32_t storage) {
    return shares(bytes) ? shared.in_the_way(storage) : layout.in_the_way(chunks_of(bytes), storage);
  }
  // Its memory on the device may be handed on from now on, 0 bytes: without a copy; or it does not leave after all.
  void leaves(const ChunkRange* range, uint64_t bytes) noexcept {
    range->shared != nullptr ? shared.leaves(range, bytes) : layout.leaves(range, bytes);
  }
  void stays(const ChunkRange* range) noexcept { range->shared != nullptr ? shared.stays(range) : layout.stays(range); }

  // So many bytes are a part of a chunk: they share it. Where tests have everything leave, what is smallest does not:
  // beside what nobody may move it would not have to.
  bool shares(uint64_t bytes) const {
    return bytes <= shared.most_bytes() && (least_leaving_bytes_ > 0 || bytes >= kLeastLeavingBytes);
  }
  // Chunks that must be had for so many bytes to find room.
  uint64_t lacking(uint64_t bytes) const { return shares(bytes) && shared.has_room(bytes) ? 0 : chunks_of(bytes); }
  // The same for an allocation that returns from the host.
  uint64_t lacking(const Block& block, const Residence& residence) const {
    const uint64_t bytes = block.record.bytes, unit = wanted_unit(residence, bytes);
    if (unit == SharedChunks::kAnyUnit) return lacking(bytes);
    return shared.has_room(bytes, unit) ? 0 : 1;
  }
  uint64_t chunks_of(uint64_t bytes) const { return (bytes + chunk_bytes_ - 1) / chunk_bytes_; }
  // What it takes of them; 0: it stays, as long as there is room for what does.
  uint64_t room_of(uint64_t bytes) const {
    if (bytes < least_leaving_bytes_) return 0;
    return shares(bytes) ? shared.part_bytes(bytes) : chunks_of(bytes) * chunk_bytes_;
  }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // A budget in whole chunks. Throws um::Error for less than one.
  uint64_t whole_chunks(uint64_t budget_bytes) const;
  // What is smaller stays on the device for as long as what stays takes no more than so many chunks.
  uint64_t least_leaving_bytes() const { return least_leaving_bytes_; }
  static constexpr uint64_t kLeastLeavingBytes = uint64_t{64} << 10;
  static constexpr uint64_t kMostStayingBytes = uint64_t{12} << 20;
  // Everything that nobody has goes back to the driver. False when it kept something.
  bool give_back() noexcept;
  // Every arena, in no order; most of what lies there may be parked.
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
  Level staying;  // chunks of what never leaves because it is small
};

}  // namespace um
