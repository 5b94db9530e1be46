// The physical chunks that storages move through, by number, with a list of the free ones in the order in which they
// were given back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory/chunk_pool.h"
#include "memory/fence.h"
#include "memory/statistics.h"

namespace um {

struct ChunkRange;

struct Chunk {
  uint64_t number = 0;  // in the order of creation; numbers of chunks that ended are reused
  ChunkPool::Chunk handle = 0;
  Fences::Fence last_use = 0;  // of its last holder; holds a reference
  Chunk* older = nullptr;      // links of the list of free chunks
  Chunk* newer = nullptr;
  uint64_t freed = 0;  // Chunks::given_back() when it was freed; equal for the chunks of one range
  double ended = 0;    // memory/layout.h: when its newest stay that has ended does so on the device's clock
  uint64_t place = 0;  // memory/layout.h: its rank in the newest layout
  bool free = false;
  ChunkRange* holder = nullptr;  // the range that holds it; nullptr: it is free
  std::vector<ChunkRange*> ranges;
};

class Chunks {
 public:
  using List = std::vector<Chunk*>;

  Chunks(const Backend& backend, uint64_t chunk_bytes, uint64_t budget_chunks)
      : pool(backend, chunk_bytes, budget_chunks) {}

  ChunkPool pool;
  Level taken;  // how many chunks are held
  uint64_t taken_bytes() const { return taken.now * pool.chunk_bytes(); }

  Chunk* at(uint32_t number) const { return number < made_.size() ? made_[number].get() : nullptr; }
  bool empty() const { return made_.empty(); }
  Chunk* oldest() const { return oldest_; }  // the chunk that has been free longest; nullptr: none is free
  // Returns how many more chunks could be taken now.
  uint64_t obtainable() const { return pool.most() > taken.now ? pool.most() - taken.now : 0; }
  bool fits(uint64_t count) const { return taken.now + count <= pool.budget(); }

  // Creates one more chunk, which is free. nullptr: the budget is used up, or the driver is out of memory. Throws
  // um::Error.
  [[nodiscard]] Chunk* create();
  // Returns `count` free chunks, by number: first the free ones of `wanted`, then new chunks, then those that were
  // given back longest ago. Returns fewer if there are not so many. Throws um::Error.
  [[nodiscard]] List find_free(uint64_t count, const List& wanted);
  // Appends chunks to the free list. Returns how often that has happened, which becomes their Chunk::freed.
  uint64_t put_back(const List& chunks) noexcept;
  uint64_t given_back() const { return given_back_; }  // how often chunks were put back
  // Removes a chunk from the free list.
  void unlink(Chunk* chunk) noexcept;
  // Gives a free chunk back to the pool.
  void end(Chunk* chunk) noexcept;
  // Checks the invariants that hold between calls (base/assert.h).
  bool check() const;

 private:
  void link(Chunk* chunk) noexcept;

  std::vector<std::unique_ptr<Chunk>> made_;
  Chunk* oldest_ = nullptr;
  Chunk* newest_ = nullptr;
  uint64_t given_back_ = 0;
};

}  // namespace um
