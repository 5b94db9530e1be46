#include "memory/host_chunks.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"
#include "memory/physical.h"
#include "memory/room.h"

namespace um {

using driver::CUDA_ERROR_OUT_OF_MEMORY;
using driver::CUDA_SUCCESS;
using driver::CUdeviceptr;
using driver::CUresult;

namespace {

constexpr uint64_t kSlabBytes = uint64_t{256} << 20;

}  // namespace

// The emulated device's memory is the machine's own, and its driver gives a chunk in no time.
HostChunks::HostChunks(const Backend& backend, Fences& fences, uint64_t chunk_bytes, uint64_t budget_bytes,
                       bool mappable)
    : backend_(backend),
      fences_(fences),
      chunk_bytes_(chunk_bytes),
      mappable_(mappable),
      slab_chunks_(mappable || backend.hooks != nullptr ? 1 : std::max<uint64_t>(kSlabBytes / chunk_bytes, 1)) {
  set_budget(budget_bytes);
}

void HostChunks::set_budget(uint64_t bytes) {
  const bool told = bytes != 0;
  if (!told) bytes = backend_.spare_host_bytes() + created_ * chunk_bytes_;
  if (bytes < chunk_bytes_) {
    throw Error(
        UM_INVALID_ARGUMENT,
        told ? "a host budget of " + std::to_string(bytes) + " bytes is below one chunk of " +
                   std::to_string(chunk_bytes_) + ": give it more, or 0 for what there is"
             : "the host has no memory to spare for what is swapped out: of " +
                   in_words(backend_.available_host_bytes()) +
                   " available, a tenth and at least 1 GiB stays free; give a host budget in bytes to take more");
  }
  budget_ = bytes / chunk_bytes_;
  while (created_ > budget_) {
    HostSlab* slab = idle_slab();
    if (slab == nullptr) return;
    for (const HostChunk& chunk : slab->chunks) fences_.wait(chunk.last_use, Wait::host_chunk_shrunk);
    drop(slab);
  }
}

HostRange* HostChunks::take(uint64_t chunks, const driver::CUstream* user) {
  if (in_use.now + chunks > budget_) return nullptr;
  ranges_.prepare(1);
  HostRange* range = ranges_.take();
  const OnError undo([&] { put(range, 0); });
  range->chunks.reserve(chunks);
  while (range->chunks.size() < chunks) {
    HostChunk* chunk = take_one(user);
    if (chunk == nullptr) {
      put(range, 0);
      return nullptr;
    }
    range->chunks.push_back(chunk);
  }
  in_use.add(chunks);
  return range;
}

void HostChunks::give(HostRange* range, Fences::Fence last_use) noexcept {
  in_use.subtract(range->chunks.size());
  put(range, last_use);
  const auto unused = [&](const HostChunk& chunk) {
    return fences_.surely_passed(chunk.last_use, Wait::host_chunk_given);
  };
  while (created_ > budget_) {
    HostSlab* slab = idle_slab();
    if (slab == nullptr || !std::all_of(slab->chunks.begin(), slab->chunks.end(), unused)) return;
    drop(slab);
  }
}

void HostChunks::put(HostRange* range, Fences::Fence last_use) noexcept {
  for (HostChunk* chunk : range->chunks) {
    fences_.retain(last_use);
    chunk->last_use = last_use;
    push_newest(chunk);
  }
  range->chunks.clear();
  ranges_.give(range);
}

void HostChunks::push_newest(HostChunk* chunk) noexcept {
  chunk->newer = nullptr;
  (newest_ != nullptr ? newest_->newer : oldest_) = chunk;
  newest_ = chunk;
  ++chunk->slab->idle;
}

HostChunk* HostChunks::pop_oldest() noexcept {
  HostChunk* chunk = oldest_;
  oldest_ = chunk->newer;
  if (oldest_ == nullptr) newest_ = nullptr;
  --chunk->slab->idle;
  fences_.release(chunk->last_use);
  chunk->last_use = 0;
  return chunk;
}

// nullptr when there is none. No new one is made because the host has not seen the last use of those that there are
// pass: where it runs ahead, that is so in every step.
HostChunk* HostChunks::take_one(const driver::CUstream* user) {
  if (oldest_ == nullptr && (created_ >= budget_ || !create())) return nullptr;
  if (user != nullptr) {
    fences_.order(*user, oldest_->last_use, Wait::departure_after_host_use);
  } else {
    fences_.wait(oldest_->last_use, Wait::host_chunk_taken);
  }
  return pop_oldest();
}

// A slab, whose chunks are the first that are taken; a smaller one where the driver has no more. False when it has
// none; throws um::Error on another failure.
bool HostChunks::create() {
  make_room(slabs_, slabs_.size() + 1);
  make_room(leftovers_, leftovers_.size() + slabs_.size() + 1);  // to drop a slab never allocates
  CUresult result = CUDA_SUCCESS;
  std::unique_ptr<HostSlab> slab;
  for (uint64_t chunks = std::min(slab_chunks_, budget_ - created_); chunks > 0 && slab == nullptr; chunks /= 2) {
    slab = obtain(chunks, &result);
    if (slab == nullptr && result != CUDA_ERROR_OUT_OF_MEMORY) {
      backend_.check(result,
                     "allocating " + in_words(chunks * chunk_bytes_) + " of host memory for what is swapped out");
    }
  }
  if (slab == nullptr) return false;
  created_ += slab->chunks.size();
  HostChunk* before = oldest_;
  HostChunk* last = newest_;
  oldest_ = newest_ = nullptr;
  for (HostChunk& chunk : slab->chunks) push_newest(&chunk);
  if (before != nullptr) {
    newest_->newer = before;
    newest_ = last;
  }
  slabs_.push_back(std::move(slab));
  return true;
}

// nullptr, with the driver's answer, when it gives none.
std::unique_ptr<HostSlab> HostChunks::obtain(uint64_t chunks, CUresult* result) {
  auto slab = std::make_unique<HostSlab>();
  slab->bytes = chunks * chunk_bytes_;
  slab->chunks.resize(chunks);
  *result = obtain_memory(*slab);
  if (*result != CUDA_SUCCESS) {
    if (!destroy(*slab)) leftovers_.push_back(std::move(slab));
    return nullptr;
  }
  for (uint64_t i = 0; i < chunks; ++i) {
    HostChunk& chunk = slab->chunks[i];
    chunk.data = slab->data + i * chunk_bytes_;
    chunk.handle = slab->handle;
    chunk.slab = slab.get();
  }
  return slab;
}

CUresult HostChunks::obtain_memory(HostSlab& slab) const {
  if (mappable_) return obtain_mappable(slab);
  void* data = nullptr;
  const CUresult result = backend_.call().mem_host_alloc(&data, slab.bytes, 0);
  if (result == CUDA_SUCCESS) slab.data = static_cast<char*>(data);
  return result;
}

CUresult HostChunks::obtain_mappable(HostSlab& slab) const {
  const driver::CUmemAllocationProp properties = physical_properties(backend_, true);
  CUresult result = backend_.call().mem_create(&slab.handle, slab.bytes, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  CUdeviceptr address = 0;
  result = backend_.call().mem_address_reserve(&address, slab.bytes, kBlockBytes, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  slab.data = reinterpret_cast<char*>(address);
  result = backend_.call().mem_map(address, slab.bytes, 0, slab.handle, 0);
  if (result != CUDA_SUCCESS) return result;
  slab.mapped = true;
  const driver::CUmemAccessDesc both[] = {{location_of(backend_, false), driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                          {location_of(backend_, true), driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  return backend_.call().mem_set_access(address, slab.bytes, both, 2);
}

// What the driver refuses is still there, to be tried again: then this is false.
bool HostChunks::destroy(HostSlab& slab) const noexcept {
  const auto address = reinterpret_cast<CUdeviceptr>(slab.data);
  const driver::Table& call = backend_.call();
  if (!mappable_) {
    if (slab.data != nullptr && call.mem_free_host(slab.data) != CUDA_SUCCESS) return false;
    slab.data = nullptr;
    return true;
  }
  if (slab.mapped && call.mem_unmap(address, slab.bytes) != CUDA_SUCCESS) return false;
  slab.mapped = false;
  if (slab.data != nullptr && call.mem_address_free(address, slab.bytes) != CUDA_SUCCESS) return false;
  slab.data = nullptr;
  if (slab.handle != 0 && call.mem_release(slab.handle) != CUDA_SUCCESS) return false;
  slab.handle = 0;
  return true;
}

// One that lies idle as a whole, nullptr when there is none.
HostSlab* HostChunks::idle_slab() noexcept {
  for (const std::unique_ptr<HostSlab>& slab : slabs_) {
    if (slab->idle == slab->chunks.size()) return slab.get();
  }
  return nullptr;
}

void HostChunks::drop(HostSlab* slab) noexcept {
  HostChunk* chunk = oldest_;
  oldest_ = newest_ = nullptr;
  while (chunk != nullptr) {
    HostChunk* const next = chunk->newer;
    if (chunk->slab == slab) {
      fences_.release(chunk->last_use);
    } else {
      --chunk->slab->idle;
      push_newest(chunk);
    }
    chunk = next;
  }
  created_ -= slab->chunks.size();
  const auto is_it = [&](const std::unique_ptr<HostSlab>& each) { return each.get() == slab; };
  std::iter_swap(std::find_if(slabs_.begin(), slabs_.end(), is_it), std::prev(slabs_.end()));
  if (!destroy(*slabs_.back())) leftovers_.push_back(std::move(slabs_.back()));
  slabs_.pop_back();
}

bool HostChunks::give_back() noexcept {
  const auto gone = [&](const std::unique_ptr<HostSlab>& slab) { return destroy(*slab); };
  leftovers_.erase(std::remove_if(leftovers_.begin(), leftovers_.end(), gone), leftovers_.end());
  try {
    while (HostSlab* slab = idle_slab()) {
      for (const HostChunk& chunk : slab->chunks) fences_.wait(chunk.last_use, Wait::host_chunk_returned);
      drop(slab);
    }
  } catch (const std::exception&) {
    return false;
  }
  return leftovers_.empty();
}

}  // namespace um
