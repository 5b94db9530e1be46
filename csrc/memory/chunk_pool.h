// The physical chunks of one device. A chunk is created when it is first needed, then reused, and there are never more
// than the budget.
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
  // Requires that all chunks were given back to the driver.
  ~ChunkPool() = default;
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  uint64_t chunk_bytes() const { return chunk_bytes_; }
  uint64_t budget() const { return budget_; }
  void set_budget(uint64_t chunks);
  // Returns how many chunks there can be at once: the budget, or fewer once the driver had no more memory.
  uint64_t most() const { return budget_ < ceiling_ ? budget_ : ceiling_; }
  uint64_t created() const { return created_; }
  uint64_t unused() const { return unused_.size(); }
  // Returns how many chunks exist beyond the budget.
  uint64_t surplus() const { return created_ > budget_ ? created_ - budget_ : 0; }
  // Includes the bytes of all chunks in this sum, until nullptr is given.
  void count_in(Level* reserved_bytes);

  // Creates one more unused chunk. Returns false if the budget is used up or the driver is out of memory; throws
  // um::Error on any other failure.
  [[nodiscard]] bool create();
  // Returns the unused chunk that take() returns next.
  Chunk newest() const { return unused_.back(); }
  [[nodiscard]] Chunk take() noexcept;
  void give(Chunk chunk) noexcept { unused_.push_back(chunk); }  // create() has reserved the capacity
  // Gives unused chunks beyond the budget back to the driver. A chunk that the driver refuses is kept and tried again.
  void shed() noexcept;
  // Gives all unused chunks back. Returns false if the driver refused one.
  [[nodiscard]] bool give_back() noexcept;

 private:
  bool release_one() noexcept;

  const Backend& backend_;
  const uint64_t chunk_bytes_;
  uint64_t budget_, created_ = 0;
  static constexpr uint64_t kNoCeiling = ~uint64_t{0};
  uint64_t ceiling_ = kNoCeiling;  // how many chunks there were when the driver ran out of memory
  std::vector<Chunk> unused_;
  Level* reserved_bytes_ = nullptr;
};

}  // namespace um
