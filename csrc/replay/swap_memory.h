// The device memory of a step that swaps: what is given out of the budget, and the most that ever was.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "planning/allocator.h"
#include "umadvise.h"

namespace um::simulator {

class SwapMemory {
 public:
  // Tells `result` and the options' columns what the most was; both are borrowed.
  SwapMemory(const um_swap_options& options, um_swap_result& result);

  // What is taken from now on is of no op yet, or of this one, which comes in the trace now.
  void begin_iteration() { op_ = -1; }
  void begin_op(int32_t op);
  // False when there is no room. Nothing has no block.
  bool take(int64_t bytes, int64_t* block);
  void free(int64_t block, int64_t bytes);
  // A copy works on memory whose storage is gone: it is free when the copy ends.
  void leave_to(uint32_t copy, int64_t block, int64_t bytes) { left_.push_back({copy, block, bytes}); }
  bool is_left_to(uint32_t copy) const;
  void free_of(uint32_t copy);

  int64_t live_bytes() const { return live_bytes_; }
  uint64_t reserved_bytes() const { return allocator_->reserved_bytes(); }
  uint64_t frees() const { return frees_; }  // how many there were
  // Chunks that were mapped since this was asked last.
  uint64_t newly_mapped();
  // What blocks take of a budget that nothing else uses: their bytes, and what the allocator rounds up.
  int64_t taken_alone(const std::vector<int64_t>& blocks_bytes) const;

 private:
  struct Left {
    uint32_t copy;
    int64_t block, bytes;
  };
  std::unique_ptr<Allocator> allocator_of(uint64_t budget_bytes) const;
  void note_peak();

  const um_swap_options& options_;
  um_swap_result& result_;
  std::unique_ptr<Allocator> allocator_;
  std::vector<Left> left_;
  int64_t live_bytes_ = 0, live_at_peak_bytes_ = 0;
  uint64_t frees_ = 0, chunks_told_ = 0;
  int32_t op_ = -1;
};

}  // namespace um::simulator
