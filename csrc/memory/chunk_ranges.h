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

#include "memory/backend.h"
#include "memory/chunk_pool.h"
#include "memory/fence.h"
#include "memory/managed_heap.h"
#include "memory/statistics.h"

namespace um {

struct ChunkRange;

// What somebody who was announced to nobody may do, on the emulated device.
enum class RawAccess : uint8_t { none, read, write };

struct Chunk {
  uint64_t number = 0;  // in the order in which they were made, without those that are gone
  ChunkPool::Chunk handle = 0;
  Fences::Fence last_use = 0;  // of whoever had it last; holds a reference
  Chunk* older = nullptr;      // of the free ones, in the order in which they were given back
  Chunk* newer = nullptr;
  uint64_t freed = 0;  // when, in that order: the same for those of one range
  double ended = 0;    // memory/layout.h: when the stay in it ends that ended last
  uint64_t place = 0;  // likewise: which one it is in the newest layout
  bool free = false;
  ChunkRange* holder = nullptr;  // nullptr: it is free
  std::vector<ChunkRange*> ranges;
};

// Addresses that show the same chunks for as long as it exists.
struct ChunkRange {
  uint64_t address = 0;
  Block* room = nullptr;  // parked there; while the range is held, whoever has it keeps a block there
  std::vector<Chunk*> chunks;
  Fences::Fence last_use = 0;  // of whoever had this range last; holds a reference
  uint64_t taken = 0;          // of its chunks, how many somebody has, through whichever range
  uint64_t since = 0;          // when it was taken last, of all takings
  uint64_t given = 0;          // when it was given back last, in that order
  bool held = false;           // it is somebody's
  bool kept = false;           // it stays mapped for as long as its chunks are there
  uint64_t stay = 0;           // memory/layout.h: the one that it is held for
  Helper::Ticket mapping = 0;  // the job that maps it, until somebody wants it
  bool refused = false;        // the driver did not
  RawAccess shown = RawAccess::write;
};

class ChunkRanges {
 public:
  // `rooms` are addresses, in whole chunks; borrowed, and outlives this.
  ChunkRanges(const Backend& backend, Fences& fences, ManagedHeap& rooms, uint64_t chunk_bytes, uint64_t budget_chunks)
      : backend_(backend),
        fences_(fences),
        rooms_(rooms),
        chunk_bytes_(chunk_bytes),
        pool_(backend, chunk_bytes, budget_chunks) {}
  // Nobody has a range any more. Whoever cares whether the driver takes its memory back calls give_back before.
  ~ChunkRanges() { static_cast<void>(give_back()); }
  ChunkRanges(const ChunkRanges&) = delete;
  ChunkRanges& operator=(const ChunkRanges&) = delete;

  // A range of so many chunks, all of them free until now; what `first_user` is given from now on runs after their last
  // users. Of those that are mapped already the one that was given back longest ago, else a new one, over the chunks
  // that were. nullptr: there is no room. Throws um::Error, and then nobody has it.
  // `wanted`: over those of these chunks that are free, whatever else is mapped.
  ChunkRange* take(uint64_t chunks, driver::CUstream first_user, const std::vector<Chunk*>& wanted = {});
  // Likewise over those chunks that were given back longest ago, whatever is mapped.
  ChunkRange* take_oldest(uint64_t chunks, driver::CUstream first_user);
  // The same of one range; false when somebody has one of its chunks.
  bool take(ChunkRange* range, driver::CUstream first_user);
  // What it was given runs until `last_use`.
  void give(ChunkRange* range, Fences::Fence last_use) noexcept;
  // What was given back since something was taken, or this was called, was given back at once: in the order in which it
  // was taken. A program lets go of many in whatever order hash tables of addresses or a collector of cycles have them.
  void end_moment() noexcept;
  // The range over these chunks, in this order, by number from 0 on: mapped by the helper, unless it is. nullptr where
  // there are not so many chunks. Numbers and ranges that are kept are good until released() changes, other ranges that
  // nobody holds until another is mapped. Throws um::Error.
  ChunkRange* map(const std::vector<uint32_t>& chunks);
  Chunk* chunk(uint32_t number) const { return number < chunks_.size() ? chunks_[number].get() : nullptr; }
  void keep_none() noexcept;

  // What accesses that no op announced may do in a range from now on, on the emulated device: any other is a fault.
  // Copies may do everything. Whoever takes a range may write. Nothing on a GPU. Throws um::Error.
  void show(ChunkRange* range, RawAccess access);

  uint64_t most() const { return pool_.most(); }  // chunks that there can be
  // Chunks that could be taken now.
  uint64_t obtainable() const { return pool_.most() > taken_.now ? pool_.most() - taken_.now : 0; }
  // What is beyond it is given back as soon as it is free, and its ranges end.
  void set_budget(uint64_t chunks);
  uint64_t budget() const { return pool_.budget(); }
  // Waits for the last use of what is free and beyond the budget. Throws um::Error.
  void settle();
  // Bytes of all chunks are part of this sum from now on, until nullptr is given.
  void count_in(Level* reserved_bytes) { pool_.count_in(reserved_bytes); }
  void reset_peak() { taken_.reset_peak(); }
  // Every chunk that nobody has goes back to the driver, and no range stays that shows it. False when the driver kept
  // something.
  bool give_back() noexcept;

  const Level& taken() const { return taken_; }         // chunks
  uint64_t created() const { return pool_.created(); }  // chunks
  uint64_t mapped() const { return mapped_; }           // chunks, counted once for each range
  uint64_t ranges() const { return ranges_.size(); }
  uint64_t released() const { return released_; }  // chunks and ranges that were kept, ever

 private:
  using Chunks = std::vector<Chunk*>;
  // On average, over all chunks of the budget. A plan's steady step needs 6 to 12
  // (docs/decisions/storages-that-move.md).
  static constexpr uint64_t kMostRangesOfChunk = 16;

  ChunkRange* idle_range(uint64_t chunks) const;
  Chunks free_chunks(uint64_t count, const Chunks& wanted);
  ChunkRange* make(Chunks chunks, bool ahead = false);
  bool mapped(ChunkRange* range) noexcept;
  Chunk* create();
  void make_place(uint64_t chunks) noexcept;
  void map_all(const ChunkRange& range);
  void allow(const ChunkRange& range, bool write);
  void veil(const ChunkRange& range, bool veiled);
  void order(const ChunkRange& range, driver::CUstream first_user);
  void hold(ChunkRange* range) noexcept;
  void end(Fences::Fence* last_use);
  bool retire(ChunkRange* range) noexcept;
  bool release(Chunk* chunk) noexcept;
  void shed() noexcept;
  void replace(Fences::Fence* fence, Fences::Fence by) noexcept;
  void link(ChunkRange* range) noexcept;
  void link(Chunk* chunk) noexcept;
  void unlink(Chunk* chunk) noexcept;

  const Backend& backend_;
  Fences& fences_;
  ManagedHeap& rooms_;
  const uint64_t chunk_bytes_;
  ChunkPool pool_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::map<Chunks, std::unique_ptr<ChunkRange>> ranges_;
  std::map<uint64_t, std::vector<ChunkRange*>> by_size_;  // chunks -> ranges
  Chunk* oldest_ = nullptr;                               // that is free
  Chunk* newest_ = nullptr;
  std::vector<ChunkRange*> given_at_once_;  // in this moment
  uint64_t takings_ = 0, given_ = 0, mapped_ = 0, released_ = 0;
  Level taken_;
};

}  // namespace um
