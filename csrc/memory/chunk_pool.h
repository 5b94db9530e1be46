// The physical chunks of one device: as many as were needed at once so far, at most the budget. A chunk is created once
// and then handed around.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/backend.h"
#include "memory/statistics.h"

namespace um {

class ChunkPool {
 public:
  using Chunk = driver::CUmemGenericAllocationHandle;

  ChunkPool(const Backend& backend, uint64_t chunk_bytes, uint64_t budget_chunks)
      : backend_(backend), chunk_bytes_(chunk_bytes), budget_(budget_chunks) {}
  // Every chunk was given back to the driver before.
  ~ChunkPool() = default;
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint64_t budget() const { return budget_; }
  void set_budget(uint64_t chunks);
  // The most that there can be at once: less than the budget once the driver had no more.
  uint64_t most() const { return budget_ < ceiling_ ? budget_ : ceiling_; }
  uint64_t created() const { return created_; }
  uint64_t unused() const { return unused_.size(); }
  // Those that exist beyond the budget.
  uint64_t surplus() const { return created_ > budget_ ? created_ - budget_ : 0; }
  // Bytes of all chunks are part of this sum from now on, until nullptr is given.
  void count_in(Level* reserved_bytes);

  // Makes one more that is unused. False when there may be no more, or the driver has none; throws um::Error on another
  // failure.
  bool create();
  // The unused one that take() gives.
  Chunk newest() const { return unused_.back(); }
  Chunk take() noexcept;
  void give(Chunk chunk) noexcept { unused_.push_back(chunk); }  // has room for all that were created
  // Gives unused chunks beyond the budget back to the driver; what it refuses is kept and tried again.
  void shed() noexcept;
  // Gives all unused ones back. False when the driver kept one.
  bool give_back() noexcept;

 private:
  bool release_one() noexcept;

  const Backend& backend_;
  const uint64_t chunk_bytes_;
  uint64_t budget_, created_ = 0;
  static constexpr uint64_t kNoCeiling = ~uint64_t{0};
  uint64_t ceiling_ = kNoCeiling;  // chunks that there were when the driver had no more
  std::vector<Chunk> unused_;
  Level* reserved_bytes_ = nullptr;
};

}  // namespace um
