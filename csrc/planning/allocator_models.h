// The allocation models behind `make_allocator`.
#pragma once

#include <array>
#include <map>

#include "planning/allocator.h"
#include "planning/block_list.h"

namespace um::simulator {

class ExactAllocator : public Allocator {
 public:
  explicit ExactAllocator(uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  int64_t allocate(uint64_t bytes) override;
  void free(int64_t block) override;
  uint64_t reserved_bytes() const override { return taken_bytes_; }

 private:
  const uint64_t budget_bytes_;
  uint64_t taken_bytes_ = 0;
};

// torch's allocator for CUDA on one stream, with its default settings (c10/cuda/CUDACachingAllocator.cpp, constants of
// c10/core/AllocatorConfig.h, torch 2.13): segments from the driver are cached, blocks are cut from them by best fit,
// and when the driver has nothing more, all segments that are wholly free go back to it before the request fails.
class CachingAllocator : public Allocator {
 public:
  static constexpr uint64_t kMinBlockBytes = 512;            // kMinBlockSize: every size is a multiple of it
  static constexpr uint64_t kSmallBytes = 1 << 20;           // kSmallSize: the largest block of the small pool
  static constexpr uint64_t kSmallSegmentBytes = 2 << 20;    // kSmallBuffer
  static constexpr uint64_t kLargeSegmentBytes = 20 << 20;   // AcceleratorAllocatorConfig::large_segment_size()
  static constexpr uint64_t kMinOwnSegmentBytes = 10 << 20;  // kMinLargeAlloc: from here on a segment for itself,
  static constexpr uint64_t kRoundSegmentBytes = 2 << 20;    // kRoundLarge: a multiple of this

  explicit CachingAllocator(uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  int64_t allocate(uint64_t bytes) override;
  void free(int64_t block) override;
  uint64_t reserved_bytes() const override { return segment_bytes_; }
  // Segments lie one behind the other in the order in which they were added, from 0 on.
  uint64_t address(int64_t block) const { return blocks_[static_cast<int32_t>(block)].address; }

 private:
  enum Pool : uint8_t { kSmall, kLarge, kPools };

  bool add_segment(Pool pool, uint64_t block_bytes);
  void release_free_segments();

  const uint64_t budget_bytes_;
  uint64_t segment_bytes_ = 0;
  uint64_t next_address_ = 0;  // segments never lie side by side: blocks of two must not join
  std::array<FreeBlocks, kPools> free_;
  BlockList blocks_;
};

// One pool of budget bytes, best fit by size, then by address; what is free at its end is taken last. What it takes of
// the budget reaches up to the end of the last live block: what is free below is what fragmentation costs.
class BestFitAllocator : public Allocator {
 public:
  static constexpr uint64_t kAlignmentBytes = 512;  // as CachingAllocator::kMinBlockBytes

  explicit BestFitAllocator(uint64_t budget_bytes);
  int64_t allocate(uint64_t bytes) override;
  void free(int64_t block) override;
  uint64_t reserved_bytes() const override;

 private:
  const uint64_t pool_bytes_;
  FreeBlocks free_;
  BlockList blocks_;
  int32_t last_ = BlockList::kNone;  // the block at the end of the pool
};

// Physical chunks of one size behind contiguous addresses (Hayakawa et al., "Out-of-core training for extremely
// large-scale neural networks with adaptive window-based scheduling", section 4): any chunk backs any range, so
// nothing is lost between blocks and less than a chunk in each. Blocks of up to half a chunk share chunks by best fit.
// A freed block's mapping is kept by its size; a new block takes one of its size, else grows the largest smaller one,
// else shrinks larger ones (nnabla-ext-cuda, virtual_caching_allocator.cpp).
class ChunkAllocator : public Allocator {
 public:
  static constexpr uint64_t kAlignmentBytes = 512;

  ChunkAllocator(uint64_t budget_bytes, uint64_t chunk_bytes);
  int64_t allocate(uint64_t bytes) override;
  void free(int64_t block) override;
  uint64_t reserved_bytes() const override { return used_chunks_ * chunk_bytes_; }
  uint64_t chunks_mapped() const override { return chunks_mapped_; }

 private:
  bool take_chunks(uint64_t count);
  void give_chunks(uint64_t count);
  void unmap(uint64_t count);

  const uint64_t chunk_bytes_, total_chunks_;
  uint64_t used_chunks_ = 0, cached_chunks_ = 0, chunks_mapped_ = 0;
  std::map<uint64_t, uint64_t> cached_;  // mappings that are kept: number by chunks
  uint64_t next_address_ = 0;            // of shared chunks, which never lie side by side
  FreeBlocks free_;                      // within shared chunks
  BlockList blocks_;
};

}  // namespace um::simulator
