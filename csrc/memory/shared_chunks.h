// Chunks that small storages share. A storage of at most half a chunk takes a part of a chunk, unless
// MovableMemory::shares() says otherwise: consecutive units of 64 KiB, or of 1/64 of a chunk that is larger than 4 MiB.
// Each part has an address range of its own over the whole chunk, so it is swapped in and evicted alone, and its access
// is set alone (RangeMapping::show).
//
// Invariants:
// - A chunk is taken from the layout for its first part, and given back with its last one. `taken` has a bit for each
//   unit that a storage has; `left` is a subset of it: the units of storages that are being evicted.
// - A unit in `left` is still taken: only give() frees it. The chunk departs in the layout (Layout::leaves) from when
//   `left` is equal to `taken`, also after give() of the last part that was not departing, until a part is taken or
//   cancels its departure.
// - The parts of a chunk are disjoint. A unit's new user waits, in its stream, for the unit's last user.
// - Storages below 64 KiB ("tiny") may be pinned to the device for life. They never share a chunk with larger ones,
//   because a pinned part keeps its chunk on the device.
//
// Example: chunks have 2 MiB, which is 32 units. Storage 3 of 1 MiB takes units 0 to 15, and storage 4 of 100 KiB takes
// units 16 and 17. If storage 3 is evicted, units 0 to 15 are free for other storages, and the chunk is still held.
// When storage 4 is evicted too, the chunk goes back to the layout.
//
// In steps that repeat, a storage returns to the seat of the step before: the same units next to the same storages (its
// group). So the shared chunks are taken and given back as in the step before, and the layout can place them
// (memory/layout.h).
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "memory/chunk_ranges.h"
#include "memory/fence.h"
#include "memory/layout.h"

namespace um {

// A chunk that is cut into parts.
struct SharedChunk {
  static constexpr uint64_t kMostUnits = 64;

  ChunkRange* whole = nullptr;  // the chunk's range, held while there is a part
  uint64_t taken = 0;           // a bit for each unit that a part has
  uint64_t left = 0;            // a bit for each taken unit that is being evicted, and may be handed on
  uint64_t longest = 0;         // the most consecutive units that no part has
  int64_t group = 0;            // the storages that return to each other have one number; below 0: unknown storages
  bool tiny = false;            // its parts have one unit each, and may be pinned to the device for life
  std::array<Fences::Fence, kMostUnits> last_use{};  // by unit: the last use by its last holder; holds a reference

  bool all_left() const { return left == taken; }
};

class SharedChunks {
 public:
  // Borrows all arguments.
  SharedChunks(ChunkRanges& ranges, Layout& layout, Fences& fences, uint64_t chunk_bytes);
  SharedChunks(const SharedChunks&) = delete;
  SharedChunks& operator=(const SharedChunks&) = delete;

  // Returns the bytes that a storage takes of chunks: whole chunks, or a part of one.
  static constexpr uint64_t share_of(uint64_t bytes, uint64_t chunk_bytes) {
    return whole(bytes, bytes > chunk_bytes / 2 ? chunk_bytes : unit_bytes_of(chunk_bytes));
  }
  // Returns the size of the largest storage that shares a chunk.
  uint64_t most_bytes() const { return chunk_bytes_ / 2; }
  // Returns the bytes of a part for so many bytes.
  uint64_t part_bytes(uint64_t bytes) const { return units(bytes) * unit_bytes_; }
  // Returns whether there is a part of any chunk.
  bool any() const { return !shared_.empty(); }
  // Returns whether a part for so many bytes is free in a chunk that is shared already. `unit`: only there.
  bool has_room(uint64_t bytes, uint64_t unit = kAnyUnit) const { return find(bytes, unit) != nullptr; }
  uint64_t unit_of(uint64_t offset_bytes) const { return offset_bytes / unit_bytes_; }
  static constexpr uint64_t kAnyUnit = ~uint64_t{0};
  // Takes a part, and returns its range. Work that `first_user` is given from now on runs after the last users of the
  // units. `storage`: its number in the steps; -1: it is unknown. `wanted`: the unit in which the part begins, in a
  // shared chunk or a new one. If there is neither, the part begins in any unit: the caller looks where. nullptr: there
  // is no chunk. Throws um::Error, and then nothing is taken.
  [[nodiscard]] ChunkRange* take(uint64_t bytes, driver::CUstream first_user, int32_t storage = -1,
                                 uint64_t wanted = kAnyUnit);
  // Gives a part back. Its last user's work has ended when `last_use` passes.
  void give(ChunkRange* range, Fences::Fence last_use) noexcept;
  // Returns Layout::in_the_way for the chunk to which a storage returns, if that chunk is not held now.
  std::vector<const ChunkRange*> in_the_way(int32_t storage);
  // Marks a part as departing, or not any more (`Layout::leaves` and cancel_departure()). The chunk departs when all of
  // its parts do.
  void leaves(const ChunkRange* range, uint64_t bytes) noexcept;
  void cancel_departure(const ChunkRange* range) noexcept;
  // Begins a step that is expected to repeat the last one, as Layout::begin_step does.
  void begin_step() noexcept;
  // Forgets all seats.
  void forget() noexcept { visits_.clear(); }
  // Returns how many chunks parts for these sizes take if no other parts exist.
  uint64_t chunks_for(const std::vector<uint64_t>& bytes) const;

 private:
  // 64 KiB of a 2 MiB chunk: whole pages on every machine, and all units of a chunk fit the bits of a word.
  static constexpr uint64_t kLeastUnitBytes = uint64_t{64} << 10;
  static constexpr uint64_t unit_bytes_of(uint64_t chunk_bytes) {
    return std::min(std::max(kLeastUnitBytes, chunk_bytes / SharedChunk::kMostUnits), chunk_bytes);
  }
  static constexpr uint64_t whole(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

  uint64_t units(uint64_t bytes) const { return (bytes + unit_bytes_ - 1) / unit_bytes_; }
  // A part that a storage had in the step before.
  struct Seat {
    int64_t group;
    uint64_t first;  // the first unit
  };
  // All seats that a storage had in a step, in order, and the one that it gets next.
  struct Visits {
    std::vector<Seat> seats;
    uint64_t step = 0, next = 0;
  };
  Seat* seat_of(int32_t storage) noexcept;
  void sit(int32_t storage, Seat seat);
  SharedChunk* find(uint64_t bytes, uint64_t unit = kAnyUnit) const;
  SharedChunk* find_group(int64_t group) const;
  SharedChunk* at(const Seat& seat, uint64_t bytes, driver::CUstream first_user);
  SharedChunk* choose(uint64_t bytes, driver::CUstream first_user, int32_t storage, uint64_t* first);
  SharedChunk* open(int64_t group, bool tiny, driver::CUstream first_user);
  void close(SharedChunk* shared) noexcept;
  void measure(SharedChunk* shared) const noexcept;
  uint64_t free_run(uint64_t taken, uint64_t count) const noexcept;

  ChunkRanges& ranges_;
  Layout& layout_;
  Fences& fences_;
  const uint64_t chunk_bytes_, unit_bytes_, units_;
  std::unordered_map<int32_t, Visits> visits_;
  uint64_t step_ = 0;
  int64_t unknown_ = 0;                               // groups of unknown storages in this step
  int64_t groups_ = 0;                                // groups that there ever were
  std::vector<std::unique_ptr<SharedChunk>> shared_;  // in the order in which they were taken
};

}  // namespace um
