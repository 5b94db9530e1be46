// Chunks that small storages share. Each has a part of a chunk, and a range of its own over that chunk: so it comes and
// leaves alone, and who may see it is its own affair (RangeMapping::show). A chunk is taken for the first part of it,
// and given back with the last one. In steps that repeat each storage comes back to where it was, next to the same
// others, if nobody is in its way: so the chunks, too, are taken and given back as in the step before, and can be laid
// out (memory/layout.h).
//
// Not thread-safe: the device's lock is held, and its context is current.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "memory/chunk_ranges.h"
#include "memory/fence.h"
#include "memory/layout.h"

namespace um {

// A chunk in parts.
struct SharedChunk {
  static constexpr uint64_t kMostUnits = 64;

  ChunkRange* whole = nullptr;                       // held for as long as anybody has a part
  uint64_t taken = 0;                                // a bit for each unit
  uint64_t left = 0;                                 // of those, what is sent away: it may be handed on
  uint64_t longest = 0;                              // units in a row that nobody has
  int64_t group = 0;                                 // those who come back to each other
  bool tiny = false;                                 // its parts are of one unit, for storages that may never leave
  std::array<Fences::Fence, kMostUnits> last_use{};  // of whoever had the unit last; holds a reference

  bool all_left() const { return left == taken; }
};

class SharedChunks {
 public:
  // All are borrowed.
  SharedChunks(ChunkRanges& ranges, Layout& layout, Fences& fences, uint64_t chunk_bytes);
  SharedChunks(const SharedChunks&) = delete;
  SharedChunks& operator=(const SharedChunks&) = delete;

  // Storages of at most so many bytes share chunks.
  uint64_t most_bytes() const { return chunk_bytes_ / 2; }
  // What a part for so many bytes takes.
  uint64_t part_bytes(uint64_t bytes) const { return units(bytes) * unit_bytes_; }
  // Whether anybody has a part of a chunk.
  bool any() const { return !shared_.empty(); }
  // There is a part of a chunk that is shared already; this one, where it must be that.
  bool has_room(uint64_t bytes, uint64_t unit = kAnyUnit) const { return find(bytes, unit) != nullptr; }
  uint64_t unit_of(uint64_t offset_bytes) const { return offset_bytes / unit_bytes_; }
  static constexpr uint64_t kAnyUnit = ~uint64_t{0};
  // A part, as the room of a range; what `first_user` is given from now on runs after its last users. nullptr: there is
  // no chunk. `storage`: its number in the steps; -1: it is not known. `wanted`: the unit where it begins in its chunk,
  // if there is a chunk for that. Throws um::Error, and then it is not taken.
  ChunkRange* take(uint64_t bytes, driver::CUstream first_user, int32_t storage = -1, uint64_t wanted = kAnyUnit);
  // What it was given runs until `last_use`.
  void give(ChunkRange* range, Fences::Fence last_use) noexcept;
  // Layout::in_the_way, of the chunk that a storage comes back to, if that is to be taken anew.
  std::vector<const ChunkRange*> in_the_way(int32_t storage);
  // Layout::leaves and stays, of a part: the chunk may be had when all of them may.
  void leaves(const ChunkRange* range, uint64_t bytes) noexcept;
  void stays(const ChunkRange* range) noexcept;
  // A step begins that is to be like the one before: Layout::begin_step.
  void begin_step() noexcept;
  // Nobody comes back to where he was.
  void forget() noexcept { visits_.clear(); }
  // Chunks that parts for so many bytes each take if nothing else is there.
  uint64_t chunks_for(const std::vector<uint64_t>& bytes) const;

 private:
  // Of a 2 MiB chunk 64 KiB: whole pages on every machine, and no more than a word of units.
  static constexpr uint64_t kLeastUnitBytes = uint64_t{64} << 10;

  uint64_t units(uint64_t bytes) const { return (bytes + unit_bytes_ - 1) / unit_bytes_; }
  // Where a storage was in the step before, each time that it came.
  struct Seat {
    int64_t group;
    uint64_t first;  // unit
  };
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
  int64_t unknown_ = 0;                               // groups of storages that nobody knows, in this step
  int64_t groups_ = 0;                                // that there ever were
  std::vector<std::unique_ptr<SharedChunk>> shared_;  // in the order in which they were taken
};

}  // namespace um
