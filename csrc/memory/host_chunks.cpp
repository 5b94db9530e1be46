#include "memory/host_chunks.h"

#include <algorithm>
#include <string>

#include "memory/error.h"
#include "memory/host_memory.h"
#include "memory/physical.h"
#include "memory/room.h"

namespace um {

using driver::CUDA_ERROR_OUT_OF_MEMORY;
using driver::CUDA_SUCCESS;
using driver::CUdeviceptr;
using driver::CUresult;

HostChunks::HostChunks(const Backend& backend, Fences& fences, uint64_t chunk_bytes, uint64_t budget_bytes,
                       bool mappable)
    : backend_(backend), fences_(fences), chunk_bytes_(chunk_bytes), mappable_(mappable) {
  set_budget(budget_bytes);
}

void HostChunks::set_budget(uint64_t bytes) {
  if (bytes == 0) bytes = backend_.available_host_bytes() + all_.size() * chunk_bytes_;
  if (bytes < chunk_bytes_) {
    throw Error(UM_INVALID_ARGUMENT, "a host budget of " + std::to_string(bytes) + " bytes is below one chunk of " +
                                         std::to_string(chunk_bytes_) + ": give it more, or 0 for what there is");
  }
  budget_ = bytes / chunk_bytes_;
  while (all_.size() > budget_ && oldest_ != nullptr) {
    fences_.wait(oldest_->last_use);
    drop_oldest();
  }
}

HostRange* HostChunks::take(uint64_t chunks) {
  if (in_use.now + chunks > budget_) return nullptr;
  ranges_.prepare(1);
  HostRange* range = ranges_.take();
  try {
    range->chunks.reserve(chunks);
    while (range->chunks.size() < chunks) {
      HostChunk* chunk = take_one();
      if (chunk == nullptr) break;
      range->chunks.push_back(chunk);
    }
  } catch (...) {
    put(range, 0);
    throw;
  }
  if (range->chunks.size() < chunks) {
    put(range, 0);
    return nullptr;
  }
  in_use.add(chunks);
  return range;
}

void HostChunks::give(HostRange* range, Fences::Fence last_use) noexcept {
  in_use.subtract(range->chunks.size());
  put(range, last_use);
  shed();
}

void HostChunks::put(HostRange* range, Fences::Fence last_use) noexcept {
  for (HostChunk* chunk : range->chunks) {
    fences_.retain(last_use);
    chunk->last_use = last_use;
    chunk->newer = nullptr;
    (newest_ != nullptr ? newest_->newer : oldest_) = chunk;
    newest_ = chunk;
  }
  range->chunks.clear();
  ranges_.give(range);
}

HostChunk* HostChunks::pop_oldest() noexcept {
  HostChunk* chunk = oldest_;
  oldest_ = chunk->newer;
  if (oldest_ == nullptr) newest_ = nullptr;
  fences_.release(chunk->last_use);
  chunk->last_use = 0;
  return chunk;
}

// One that is used no more, else a new one, else the one that was given back first. nullptr when there is none.
HostChunk* HostChunks::take_one() {
  const bool ready = oldest_ != nullptr && fences_.passed(oldest_->last_use);
  if (!ready && all_.size() < budget_) {
    if (HostChunk* fresh = create()) return fresh;
  }
  if (oldest_ == nullptr) return nullptr;
  fences_.wait(oldest_->last_use);
  return pop_oldest();
}

// nullptr when the driver has no more; throws um::Error on another failure.
HostChunk* HostChunks::create() {
  make_room(all_, all_.size() + 1);
  make_room(leftovers_, leftovers_.size() + all_.size() + 1);  // to drop a chunk never allocates
  auto chunk = std::make_unique<HostChunk>();
  const CUresult result = obtain(*chunk);
  if (result == CUDA_SUCCESS) {
    chunk->index = all_.size();
    all_.push_back(std::move(chunk));
    return all_.back().get();
  }
  if (!destroy(*chunk)) leftovers_.push_back(std::move(chunk));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return nullptr;
  backend_.check(result, "allocating " + in_words(chunk_bytes_) + " of host memory for what is swapped out");
  return nullptr;
}

CUresult HostChunks::obtain(HostChunk& chunk) const {
  if (mappable_) return obtain_mappable(chunk);
  void* data = nullptr;
  const CUresult result = backend_.call().mem_host_alloc(&data, chunk_bytes_, 0);
  if (result == CUDA_SUCCESS) chunk.data = static_cast<char*>(data);
  return result;
}

CUresult HostChunks::obtain_mappable(HostChunk& chunk) const {
  const driver::CUmemAllocationProp properties = physical_properties(backend_, true);
  CUresult result = backend_.call().mem_create(&chunk.handle, chunk_bytes_, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  CUdeviceptr address = 0;
  result = backend_.call().mem_address_reserve(&address, chunk_bytes_, kBlockBytes, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  chunk.data = reinterpret_cast<char*>(address);
  result = backend_.call().mem_map(address, chunk_bytes_, 0, chunk.handle, 0);
  if (result != CUDA_SUCCESS) return result;
  chunk.mapped = true;
  const driver::CUmemAccessDesc both[] = {{location_of(backend_, false), driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                          {location_of(backend_, true), driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  return backend_.call().mem_set_access(address, chunk_bytes_, both, 2);
}

// What the driver refuses is still there, to be tried again: then this is false.
bool HostChunks::destroy(HostChunk& chunk) const noexcept {
  const auto address = reinterpret_cast<CUdeviceptr>(chunk.data);
  const driver::Table& call = backend_.call();
  if (!mappable_) {
    if (chunk.data != nullptr && call.mem_free_host(chunk.data) != CUDA_SUCCESS) return false;
    chunk.data = nullptr;
    return true;
  }
  if (chunk.mapped && call.mem_unmap(address, chunk_bytes_) != CUDA_SUCCESS) return false;
  chunk.mapped = false;
  if (chunk.data != nullptr && call.mem_address_free(address, chunk_bytes_) != CUDA_SUCCESS) return false;
  chunk.data = nullptr;
  if (chunk.handle != 0 && call.mem_release(chunk.handle) != CUDA_SUCCESS) return false;
  chunk.handle = 0;
  return true;
}

void HostChunks::drop_oldest() noexcept {
  const size_t index = pop_oldest()->index;
  std::swap(all_[index], all_.back());
  all_[index]->index = index;
  if (!destroy(*all_.back())) leftovers_.push_back(std::move(all_.back()));
  all_.pop_back();
}

void HostChunks::shed() noexcept {
  while (all_.size() > budget_ && oldest_ != nullptr && fences_.surely_passed(oldest_->last_use)) drop_oldest();
}

bool HostChunks::give_back() noexcept {
  const auto gone = [&](const std::unique_ptr<HostChunk>& chunk) { return destroy(*chunk); };
  leftovers_.erase(std::remove_if(leftovers_.begin(), leftovers_.end(), gone), leftovers_.end());
  try {
    while (oldest_ != nullptr) {
      fences_.wait(oldest_->last_use);
      drop_oldest();
    }
  } catch (const std::exception&) {
    return false;
  }
  return leftovers_.empty();
}

}  // namespace um
