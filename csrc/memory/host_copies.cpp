#include "memory/host_copies.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"
#include "memory/places.h"
#include "memory/room.h"

namespace um {

using driver::CUDA_ERROR_OUT_OF_MEMORY;
using driver::CUDA_SUCCESS;
using driver::CUresult;

namespace {

uint64_t aligned(uint64_t address) { return (address + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

}  // namespace

// ---- slabs ---------------------------------------------------------------------------------------------------

void HostSlabs::set_budget(uint64_t bytes) {
  const bool given = bytes != 0;
  if (!given) bytes = backend_.default_host_bytes() + created_bytes_;
  if (bytes < kBlockBytes) {
    throw Error(
        UM_INVALID_ARGUMENT,
        given ? "a host budget of " + std::to_string(bytes) + " bytes is below " + in_words(kBlockBytes) +
                    ": give it more, or 0 for what there is"
              : "the host has no memory to spare for what is swapped out: of " +
                    in_words(backend_.available_host_bytes()) +
                    " available, a tenth and at least 1 GiB stays free; give a host budget in bytes to take more");
  }
  budget_bytes_ = bytes / kBlockBytes * kBlockBytes;
}

ArenaSource::Range HostSlabs::acquire(uint64_t least_bytes, uint64_t wanted_bytes) {
  const RequiredContext current(backend_);
  make_room(slabs_, slabs_.size() + 1);
  if (ahead().bytes >= least_bytes && ahead_.memory != nullptr) {
    const Ahead made = std::exchange(ahead_, {});
    make_ahead(wanted_bytes);
    return keep(made.memory, made.bytes);
  }
  static_cast<void>(drop_ahead());
  const uint64_t left = budget_bytes_ - std::min(budget_bytes_, created_bytes_);
  for (uint64_t bytes = std::min(wanted_bytes, left); bytes >= least_bytes;
       bytes = bytes / 2 / kBlockBytes * kBlockBytes) {
    void* memory = nullptr;
    const CUresult result = allocate(bytes, &memory);
    if (result == CUDA_SUCCESS) {
      created_bytes_ += bytes;
      if (!slabs_.empty()) make_ahead(wanted_bytes);
      return keep(memory, bytes);
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
      backend_.check(result, "allocating " + in_words(bytes) + " of host memory for what is swapped out");
  }
  throw Error(UM_OUT_OF_HOST_MEMORY, "no " + in_words(least_bytes) + " are left of the host's budget of " +
                                         in_words(budget_bytes_) + ", or the driver has no more");
}

CUresult HostSlabs::allocate(uint64_t bytes, void** memory) const {
  return backend_.call().mem_host_alloc(memory, bytes + kBlockBytes, 0);  // enough to align the slab
}

ArenaSource::Range HostSlabs::keep(void* memory, uint64_t bytes) {
  slabs_.push_back({memory, aligned(reinterpret_cast<uint64_t>(memory))});
  return {slabs_.back().address, bytes};
}

void HostSlabs::make_ahead(uint64_t bytes) noexcept {
  if (!backend_.helper->beside() || ahead_.bytes != 0 || created_bytes_ + bytes > budget_bytes_) return;
  try {
    ahead_.job = backend_.helper->ask([this, bytes] {
      if (allocate(bytes, &ahead_.memory) != CUDA_SUCCESS) ahead_.memory = nullptr;
    });
    // If no job can be queued, the slab is allocated when it is needed.
  } catch (const std::exception&) {
    return;
  }
  ahead_.bytes = bytes;
  created_bytes_ += bytes;
}

const HostSlabs::Ahead& HostSlabs::ahead() noexcept {
  backend_.helper->finish(std::exchange(ahead_.job, 0));
  return ahead_;
}

bool HostSlabs::drop_ahead() noexcept {
  if (ahead().memory != nullptr && backend_.call().mem_free_host(ahead_.memory) != CUDA_SUCCESS) return false;
  created_bytes_ -= std::exchange(ahead_, {}).bytes;
  return true;
}

bool HostSlabs::release(Range range) noexcept {
  const CurrentContext current(backend_);
  const auto found =
      std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& slab) { return slab.address == range.address; });
  if (current.result() != CUDA_SUCCESS || backend_.call().mem_free_host(found->memory) != CUDA_SUCCESS) return false;
  slabs_.erase(found);
  created_bytes_ -= range.bytes;
  return true;
}

// ---- copies --------------------------------------------------------------------------------------------------

HostCopies::HostCopies(um_device* device, const Backend& backend, Fences& fences, StablePool<Block>& blocks,
                       uint64_t budget_bytes, uint64_t slab_bytes)
    : fences_(fences),
      slabs_(backend, budget_bytes),
      heap_(device, kInternalPlacement, slabs_, blocks, backend.hooks->in_host ? kSmallSlabBytes : slab_bytes) {}

Block* HostCopies::take(uint64_t bytes, const driver::CUstream* user) {
  Block* block = nullptr;
  try {
    block = heap_.allocate(bytes);
  } catch (const Error& error) {
    if (error.status() != UM_OUT_OF_HOST_MEMORY) throw;
    return nullptr;
  }
  const OnError undo([&] { heap_.free(block, true); });
  for (const Use& use : uses_) {
    if (use.end <= block->address || use.begin >= block->end()) continue;
    if (user != nullptr) {
      fences_.order(*user, use.until, Wait::departure_after_host_use);
    } else {
      fences_.wait(use.until, Wait::host_chunk_taken);
    }
  }
  park(block);
  in_use.add(block->bytes);
  return block;
}

void HostCopies::give(Block* block, Fences::Fence last_use) noexcept {
  in_use.subtract(block->bytes);
  if (last_use != 0) {
    try {
      uses_.push_back({block->address, block->end(), last_use});
      fences_.retain(last_use);
      // Without an entry the next user could not be made to wait, so the last use must end first.
    } catch (const std::bad_alloc&) {
      fences_.wait(last_use, Wait::host_chunk_given);
    }
  }
  heap_.free(block, true);
  forget_passed();
  if (slabs_.created_bytes() > slabs_.budget_bytes() && uses_.empty()) static_cast<void>(heap_.trim());
}

// Uses end in about the order in which they were given back, so the first one that has not passed ends the search.
void HostCopies::forget_passed() noexcept {
  while (!uses_.empty() && fences_.surely_passed(uses_.front().until, Wait::host_chunk_given)) {
    fences_.release(uses_.front().until);
    uses_.pop_front();
  }
}

void HostCopies::set_budget(uint64_t bytes) {
  slabs_.set_budget(bytes);
  if (slabs_.created_bytes() <= slabs_.budget_bytes()) return;
  static_cast<void>(give_back());
}

bool HostCopies::give_back() noexcept {
  const bool dropped = slabs_.drop_ahead();
  try {
    for (; !uses_.empty(); uses_.pop_front()) {
      fences_.wait(uses_.front().until, Wait::host_chunk_returned);
      fences_.release(uses_.front().until);
    }
  } catch (const std::exception&) {
    return false;
  }
  return heap_.trim() && dropped;
}

}  // namespace um
