#include "replay/swap_memory.h"

#include <algorithm>

namespace um::simulator {

SwapMemory::SwapMemory(const um_swap_options& options, um_swap_result& result)
    : options_(options), result_(result), allocator_(allocator_of(options.budget_bytes)) {}

std::unique_ptr<Allocator> SwapMemory::allocator_of(uint64_t budget_bytes) const {
  return make_allocator(static_cast<AllocatorModel>(options_.allocator), budget_bytes, options_.chunk_bytes);
}

void SwapMemory::begin_op(int32_t op) {
  op_ = op;
  if (options_.op_live_bytes != nullptr) options_.op_live_bytes[op] = 0;
  if (options_.op_reserved_bytes != nullptr) options_.op_reserved_bytes[op] = 0;
  note_peak();
}

bool SwapMemory::take(int64_t bytes, int64_t* block) {
  if (bytes == 0) return true;
  const int64_t found = allocator_->allocate(static_cast<uint64_t>(bytes));
  if (found == Allocator::kNoRoom) return false;
  *block = found;
  live_bytes_ += bytes;
  note_peak();
  return true;
}

void SwapMemory::free(int64_t block, int64_t bytes) {
  if (bytes == 0) return;
  allocator_->free(block);
  live_bytes_ -= bytes;
  ++frees_;
}

bool SwapMemory::is_left_to(uint32_t copy) const {
  return std::any_of(left_.begin(), left_.end(), [&](const Left& each) { return each.copy == copy; });
}

void SwapMemory::free_of(uint32_t copy) {
  const auto left = std::find_if(left_.begin(), left_.end(), [&](const Left& each) { return each.copy == copy; });
  free(left->block, left->bytes);
  left_.erase(left);
}

uint64_t SwapMemory::newly_mapped() {
  const uint64_t chunks = allocator_->chunks_mapped() - chunks_told_;
  chunks_told_ += chunks;
  return chunks;
}

void SwapMemory::note_peak() {
  const auto reserved_bytes = static_cast<int64_t>(allocator_->reserved_bytes());
  result_.peak_live_bytes = std::max(result_.peak_live_bytes, live_bytes_);
  const auto raise = [&](int64_t* each_op, int64_t bytes) {
    if (each_op != nullptr && op_ >= 0) each_op[op_] = std::max(each_op[op_], bytes);
  };
  raise(options_.op_live_bytes, live_bytes_);
  raise(options_.op_reserved_bytes, reserved_bytes);
  const bool fuller = reserved_bytes == result_.peak_reserved_bytes && live_bytes_ > live_at_peak_bytes_;
  if (reserved_bytes <= result_.peak_reserved_bytes && !fuller) return;
  result_.peak_reserved_bytes = reserved_bytes;
  live_at_peak_bytes_ = live_bytes_;
  result_.fragmentation_bytes = reserved_bytes - live_bytes_;
  result_.peak_op = op_;
}

int64_t SwapMemory::taken_alone(const std::vector<int64_t>& blocks_bytes) const {
  constexpr uint64_t kWithoutEnd = uint64_t{1} << 61;
  const auto allocator = allocator_of(kWithoutEnd);
  for (const int64_t bytes : blocks_bytes)
    if (bytes > 0) allocator->allocate(static_cast<uint64_t>(bytes));
  return static_cast<int64_t>(allocator->reserved_bytes());
}

}  // namespace um::simulator
