// Device memory for storages that move: address ranges over physical chunks. A chunk may be mapped in several ranges at
// once (CUDA C++ Programming Guide, "Virtual Aliasing Support").
//
// Taking a range takes its chunks, and giving it back frees them. Any free chunks can form the next range, so the only
// fragmentation is the rounding to whole chunks. If a mapped range of the right size has only free chunks, nothing is
// mapped.
//
// Invariants:
// - A chunk has at most one holder among the ranges. ChunkRange::taken is the number of its chunks that are not free.
// - The new user's stream waits for the last user of each chunk, because aliased addresses are coherent only between
//   kernels (and copies) that do not overlap.
//
// Example: the budget is three chunks, and range A = {0, 1} is given back. A request for two chunks takes A again
// without a mapping call. A request for three chunks creates chunk 2, and maps a new range B = {0, 1, 2}. From then on
// A cannot be taken until B is given back.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory/chunks.h"
#include "memory/fence.h"
#include "memory/managed_heap.h"
#include "memory/range_mapping.h"

namespace um {

class ChunkRanges {
 public:
  // `rooms` provides addresses in whole chunks. It is borrowed, and outlives this.
  ChunkRanges(const Backend& backend, Fences& fences, ManagedHeap& rooms, uint64_t chunk_bytes, uint64_t budget_chunks)
      : chunks(backend, chunk_bytes, budget_chunks), mapping(backend, rooms, chunk_bytes), fences_(fences) {}
  // Requires that no range is held. Callers that need to know whether the driver refused call give_back() before.
  ~ChunkRanges() { static_cast<void>(give_back()); }
  ChunkRanges(const ChunkRanges&) = delete;
  ChunkRanges& operator=(const ChunkRanges&) = delete;

  Chunks chunks;  // only set_budget() changes how many there may be
  RangeMapping mapping;

  // Takes a range of `count` chunks, which were all free. Work that `first_user` is given from now on runs after their
  // last users. Prefers the mapped range that was given back longest ago; otherwise maps a new one over new chunks, or
  // over those that have been free for longest. `wanted`: prefers the free ones among these chunks, even if a new range
  // has to be mapped. nullptr: there are too few free chunks. Throws um::Error, and then nothing is taken.
  [[nodiscard]] ChunkRange* take(uint64_t count, driver::CUstream first_user, const Chunks::List& wanted = {});
  // Takes the chunks that were given back longest ago, even if a new range has to be mapped.
  [[nodiscard]] ChunkRange* take_oldest(uint64_t count, driver::CUstream first_user);
  // Takes this range. Returns false if one of its chunks is taken.
  [[nodiscard]] bool take(ChunkRange* range, driver::CUstream first_user);
  // Gives a range back. Its last user's work has ended when `last_use` passes.
  void give(ChunkRange* range, Fences::Fence last_use) noexcept;
  // Takes one more range over a chunk that is held already, for a part of it. Reuses a mapped one if possible. Throws
  // um::Error.
  [[nodiscard]] ChunkRange* take_part(Chunk* chunk);
  void give_part(ChunkRange* range, Fences::Fence last_use) noexcept;
  // Ends a range that was given back, unmaps it, and returns its addresses to the caller. nullptr: its last user's work
  // may still run, or the driver refused.
  [[nodiscard]] Block* detach(ChunkRange* range) noexcept;
  // Sorts the ranges that were given back since the last call, or since one was taken: they count as given back at
  // once, in the order in which they were taken. A program frees tensors between two ops in the order of a hash table
  // or of the collector of cycles, which must not decide which chunks are reused.
  void end_moment() noexcept;
  // Returns the range over the chunks with these numbers, in this order. If it is not mapped, the helper maps it.
  // nullptr: there are not so many chunks. Numbers and kept ranges are valid until released() changes; other ranges are
  // valid until another one is mapped. Throws um::Error.
  ChunkRange* map(const std::vector<uint32_t>& numbers);
  void keep(ChunkRange* range) noexcept;
  void keep_none() noexcept;

  // Sets the budget. Chunks beyond it are given back to the driver as soon as they are free, and their ranges end.
  void set_budget(uint64_t count);
  // Waits for the last use of free chunks beyond the budget, and gives them back. Throws um::Error.
  void shrink_to_budget();
  // Gives all free chunks back to the driver, and ends their ranges. Returns false if the driver refused.
  [[nodiscard]] bool give_back() noexcept;

  // Checks the invariants that hold between calls (base/assert.h).
  bool check() const;

  uint64_t ranges() const { return ranges_.size() + parts_.size(); }
  uint64_t released() const { return released_; }  // how many chunks and kept ranges have ever ended

 private:
  // The average number of ranges a chunk, over all chunks of the budget, without kept ranges. A plan's steady step
  // needs 6 to 12, or twice as many if it repeats every two steps (docs/decisions/storages-that-move.md).
  static constexpr uint64_t kMostRangesOfChunk = 16;

  ChunkRange* idle_range(uint64_t count) const;
  ChunkRange* make(Chunks::List over, bool ahead = false);
  void enter(ChunkRange* range, bool ahead);
  bool mapped(ChunkRange* range) noexcept;
  void make_place(uint64_t count) noexcept;
  void hold(ChunkRange* range, driver::CUstream first_user);
  void end(Fences::Fence* last_use);
  bool retire(ChunkRange* range) noexcept;
  void drop(ChunkRange* range) noexcept;
  bool release(Chunk* chunk) noexcept;
  void shed() noexcept;
  bool beyond_budget() const { return chunks.pool.surplus() > chunks.pool.unused(); }
  void replace(Fences::Fence* fence, Fences::Fence by) noexcept;
  bool check(const ChunkRange& range) const;

  Fences& fences_;
  std::map<Chunks::List, std::unique_ptr<ChunkRange>> ranges_;
  std::map<uint64_t, std::vector<ChunkRange*>> by_size_;  // chunks -> ranges
  std::vector<std::unique_ptr<ChunkRange>> parts_;        // ranges over a part of a chunk
  std::vector<ChunkRange*> given_at_once_;                // since the last end_moment()
  uint64_t takings_ = 0, released_ = 0;
  uint64_t kept_ = 0;  // the sum of the chunks of all kept ranges
};

}  // namespace um
