// Device memory for storages that move: address ranges over physical chunks, of which each may lie under many ranges
// at once (CUDA C++ Programming Guide, "Virtual Aliasing Support"). Whoever gives a range back frees its chunks, and
// any free chunks make the next range: memory has no holes but what rounding to chunks leaves, and once a range of the
// size lies over chunks that are free, none is mapped. What a chunk holds is seen through another of its ranges when
// the kernel or copy that wrote it has ended: whoever takes a range comes after whoever had its chunks, in their
// streams.
//
// Not thread-safe: the device's lock is held, and its context is current.
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
  // `rooms` are addresses, in whole chunks; borrowed, and outlives this.
  ChunkRanges(const Backend& backend, Fences& fences, ManagedHeap& rooms, uint64_t chunk_bytes, uint64_t budget_chunks)
      : chunks(backend, chunk_bytes, budget_chunks), mapping(backend, rooms, chunk_bytes), fences_(fences) {}
  // Nobody has a range any more. Whoever cares whether the driver takes its memory back calls give_back before.
  ~ChunkRanges() { static_cast<void>(give_back()); }
  ChunkRanges(const ChunkRanges&) = delete;
  ChunkRanges& operator=(const ChunkRanges&) = delete;

  Chunks chunks;  // Only set_budget() says how many there may be.
  RangeMapping mapping;

  // A range of so many chunks, all of them free until now; what `first_user` is given from now on runs after their last
  // users. Of those that are mapped already the one that was given back longest ago, else a new one, over the chunks
  // that were. nullptr: there is no room. Throws um::Error, and then it is not taken.
  // `wanted`: over those of these chunks that are free, whatever else is mapped.
  ChunkRange* take(uint64_t count, driver::CUstream first_user, const Chunks::List& wanted = {});
  // Likewise over those chunks that were given back longest ago, whatever is mapped.
  ChunkRange* take_oldest(uint64_t count, driver::CUstream first_user);
  // The same of one range; false when somebody has one of its chunks.
  bool take(ChunkRange* range, driver::CUstream first_user);
  // What it was given runs until `last_use`.
  void give(ChunkRange* range, Fences::Fence last_use) noexcept;
  // One more range over a chunk that somebody has, for a part of it; it is mapped already or is mapped now. Throws
  // um::Error.
  ChunkRange* take_part(Chunk* chunk);
  void give_part(ChunkRange* range, Fences::Fence last_use) noexcept;
  // A range that was given back is not reused: it ends, and its addresses, where nothing is mapped any more, are
  // the caller's. nullptr where what it was given may still run, or the driver refuses.
  Block* detach(ChunkRange* range) noexcept;
  // What was given back since something was taken, or this was called, was given back at once: in the order in which it
  // was taken. A program lets go of many in whatever order hash tables of addresses or a collector of cycles have them.
  void end_moment() noexcept;
  // The range over these chunks, in this order, by number from 0 on: mapped by the helper, unless it is. nullptr where
  // there are not so many chunks. Numbers and ranges that are kept are good until released() changes, other ranges that
  // nobody holds until another is mapped. Throws um::Error.
  ChunkRange* map(const std::vector<uint32_t>& numbers);
  void keep(ChunkRange* range) noexcept;
  void keep_none() noexcept;

  // What is beyond it is given back as soon as it is free, and its ranges end.
  void set_budget(uint64_t count);
  // Waits for the last use of what is free and beyond the budget. Throws um::Error.
  void settle();
  // Every chunk that nobody has goes back to the driver, and no range stays that shows it. False when the driver kept
  // something.
  bool give_back() noexcept;

  // What holds between calls (base/assert.h).
  bool check() const;

  uint64_t ranges() const { return ranges_.size() + parts_.size(); }
  uint64_t released() const { return released_; }  // chunks and ranges that were kept, ever

 private:
  // On average, over all chunks of the budget, beside those that are kept: a plan's steady step needs 6 to 12, twice as
  // many where it repeats every two steps (docs/decisions/storages-that-move.md).
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
  std::vector<std::unique_ptr<ChunkRange>> parts_;        // ranges for parts of a chunk
  std::vector<ChunkRange*> given_at_once_;                // in this moment
  uint64_t takings_ = 0, released_ = 0;
  uint64_t kept_ = 0;  // chunks of ranges that are kept
};

}  // namespace um
