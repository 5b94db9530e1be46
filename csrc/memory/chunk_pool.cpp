#include "memory/chunk_pool.h"

#include <string>

#include "memory/physical.h"
#include "memory/room.h"

namespace um {

using driver::CUDA_ERROR_OUT_OF_MEMORY;
using driver::CUDA_SUCCESS;
using driver::CUresult;

void ChunkPool::set_budget(uint64_t chunks) {
  budget_ = chunks;
  ceiling_ = kNoCeiling;
}

void ChunkPool::count_in(Level* reserved_bytes) {
  if (reserved_bytes_ != nullptr) reserved_bytes_->subtract(created_ * chunk_bytes_);
  reserved_bytes_ = reserved_bytes;
  if (reserved_bytes_ != nullptr) reserved_bytes_->add(created_ * chunk_bytes_);
}

bool ChunkPool::create() {
  if (created_ >= budget_) return false;
  make_room(unused_, created_ + 1);
  const driver::CUmemAllocationProp properties = physical_properties(backend_);
  Chunk chunk = 0;
  const CUresult result = backend_.call().mem_create(&chunk, chunk_bytes_, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    ceiling_ = created_;
    return false;
  }
  backend_.check(result, "creating a chunk of " + std::to_string(chunk_bytes_) + " bytes of device memory");
  ++created_;
  if (created_ > ceiling_) ceiling_ = kNoCeiling;
  unused_.push_back(chunk);
  if (reserved_bytes_ != nullptr) reserved_bytes_->add(chunk_bytes_);
  return true;
}

ChunkPool::Chunk ChunkPool::take() noexcept {
  const Chunk chunk = unused_.back();
  unused_.pop_back();
  return chunk;
}

bool ChunkPool::release_one() noexcept {
  if (backend_.call().mem_release(unused_.back()) != CUDA_SUCCESS) return false;
  unused_.pop_back();
  --created_;
  if (reserved_bytes_ != nullptr) reserved_bytes_->subtract(chunk_bytes_);
  return true;
}

void ChunkPool::shed() noexcept {
  while (surplus() > 0 && !unused_.empty() && release_one()) {
  }
}

bool ChunkPool::give_back() noexcept {
  while (!unused_.empty() && release_one()) {
  }
  return unused_.empty();
}

}  // namespace um
