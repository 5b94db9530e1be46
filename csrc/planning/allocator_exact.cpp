// The sum of the blocks' bytes: what no allocator can do better than.
#include "planning/allocator_models.h"

namespace um::simulator {

int64_t ExactAllocator::allocate(uint64_t bytes) {
  if (bytes > budget_bytes_ - taken_bytes_) return kNoRoom;
  taken_bytes_ += bytes;
  return static_cast<int64_t>(bytes);  // all that has to be known to free it
}

void ExactAllocator::free(int64_t block) { taken_bytes_ -= static_cast<uint64_t>(block); }

std::unique_ptr<Allocator> make_allocator(AllocatorModel model, uint64_t budget_bytes, uint64_t chunk_bytes) {
  switch (model) {
    case AllocatorModel::caching:
      return std::make_unique<CachingAllocator>(budget_bytes);
    case AllocatorModel::best_fit:
      return std::make_unique<BestFitAllocator>(budget_bytes);
    case AllocatorModel::va_chunks:
      return std::make_unique<ChunkAllocator>(budget_bytes, chunk_bytes);
    case AllocatorModel::exact:
      break;
  }
  return std::make_unique<ExactAllocator>(budget_bytes);
}

}  // namespace um::simulator
