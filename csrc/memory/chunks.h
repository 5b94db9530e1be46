// The physical chunks of a device that storages move through: each by its number, and those that nobody has in the
// order in which they were given back.
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

class Chunks {
 public:
  using List = std::vector<Chunk*>;

  Chunks(const Backend& backend, uint64_t chunk_bytes, uint64_t budget_chunks)
      : pool(backend, chunk_bytes, budget_chunks) {}

  ChunkPool pool;
  Level taken;  // chunks that somebody has
  uint64_t taken_bytes() const { return taken.now * pool.chunk_bytes(); }

  Chunk* at(uint32_t number) const { return number < made_.size() ? made_[number].get() : nullptr; }
  bool empty() const { return made_.empty(); }
  Chunk* oldest() const { return oldest_; }  // that is free; nullptr: none
  // That could be taken now.
  uint64_t obtainable() const { return pool.most() > taken.now ? pool.most() - taken.now : 0; }
  bool fits(uint64_t count) const { return taken.now + count <= pool.budget(); }

  // One more, which is free. nullptr where there may be no more, or the driver has none. Throws um::Error.
  Chunk* create();
  // So many free ones, by number: the wanted ones, new ones as long as there may be more, then those that were given
  // back longest ago; fewer where there are no more. Throws um::Error.
  List find_free(uint64_t count, const List& wanted);
  // Nobody has them any more: when, of all that was given back.
  uint64_t put_back(const List& chunks) noexcept;
  uint64_t given_back() const { return given_back_; }  // times that chunks were put back, ever
  // It is no free one any more.
  void unlink(Chunk* chunk) noexcept;
  // A free one goes back to the pool.
  void end(Chunk* chunk) noexcept;
  // What holds between calls (base/assert.h).
  bool check() const;

 private:
  void link(Chunk* chunk) noexcept;

  std::vector<std::unique_ptr<Chunk>> made_;
  Chunk* oldest_ = nullptr;
  Chunk* newest_ = nullptr;
  uint64_t given_back_ = 0;
};

}  // namespace um
