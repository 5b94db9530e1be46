// Chunked memory of an emulated device, blocks in it, and contents that tell blocks and places apart.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "base/error.h"
#include "check.h"
#include "memory/allocations.h"
#include "memory/chunked_memory.h"

namespace test {

// One reference to a fence.
class HeldFence {
 public:
  // Takes over the caller's reference.
  HeldFence(um::Fences& fences, um::Fences::Fence fence) : fences_(fences), fence_(fence) {}
  ~HeldFence() { fences_.release(fence_); }
  HeldFence(const HeldFence&) = delete;
  HeldFence& operator=(const HeldFence&) = delete;
  operator um::Fences::Fence() const { return fence_; }

 private:
  um::Fences& fences_;
  const um::Fences::Fence fence_;
};

using um::Block;
using um::ChunkedMemory;
using um::Error;
using um::Fences;
using um::driver::CUstream;

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kChunk = 2 * kMiB;
inline constexpr um_placement kChunked{UM_MEMORY_CHUNKED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

struct Rig {
  explicit Rig(uint64_t budget_chunks, um_chunk_options options = {}, uint32_t delay_max_us = 0)
      : backend(um::Backend::open_emulated({64 * kMiB, 256 * kMiB, UM_COUNTING_ORDERED, delay_max_us, check::seed(3)})),
        current(std::make_unique<um::CurrentContext>(backend)),
        fences(std::make_unique<Fences>(backend)) {
    options.budget_bytes = budget_chunks * (options.chunk_bytes != 0 ? options.chunk_bytes : kChunk);
    if (options.host_budget_bytes == 0) options.host_budget_bytes = 64 * kMiB;
    memory = std::make_unique<ChunkedMemory>(backend, options, *fences);
    allocations = std::make_unique<um::Allocations>(nullptr, backend);
    allocations->set_chunked(memory.get());
    CHECK_EQ(backend.call().stream_create(&stream, um::driver::CU_STREAM_NON_BLOCKING), um::driver::CUDA_SUCCESS);
  }
  ~Rig() {
    backend.hooks->fail(backend.ordinal, nullptr, 0);
    for (const auto& each : blocks) free_later(each.second);
    for (int i = 0; i < 3 && !allocations->trim(); ++i) {
    }
    allocations.reset();
    memory.reset();
    backend.call().stream_destroy(stream);
    fences.reset();
    current.reset();
    backend.close();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  Block* allocate(uint64_t bytes) {
    Block* block = allocations->allocate(bytes, kChunked, {});
    blocks[block->address] = block;
    return block;
  }
  Block* backed(uint64_t chunks) {
    Block* block = allocate(chunks * kChunk);
    CHECK(memory->back(*block, nullptr));
    return block;
  }
  void free(Block* block, Fences::Fence last_use = 0) {
    blocks.erase(block->address);
    free_later(block, last_use);
  }
  uint64_t calls(const char* function = nullptr) const { return backend.hooks->calls(backend.ordinal, function); }
  void fail(const char* function, uint64_t nth) const { CHECK(backend.hooks->fail(backend.ordinal, function, nth)); }
  uint64_t device_bytes() const {
    um::emulated::Totals totals{};
    backend.hooks->totals(backend.ordinal, &totals);
    return totals.device_bytes;
  }
  void synchronize() const { CHECK_EQ(backend.call().stream_synchronize(stream), um::driver::CUDA_SUCCESS); }

  um::Backend backend;
  std::unique_ptr<um::CurrentContext> current;
  std::unique_ptr<Fences> fences;
  std::unique_ptr<ChunkedMemory> memory;
  std::unique_ptr<um::Allocations> allocations;
  CUstream stream = nullptr;
  std::map<uint64_t, Block*> blocks;

 private:
  void free_later(Block* block, Fences::Fence last_use = 0) {
    if (block->record.bytes > memory->most_small_bytes()) memory->freed(*block, last_use);
    allocations->free(block);
  }
};

inline unsigned char* data(const Block* block) { return reinterpret_cast<unsigned char*>(block->address); }

// Contents that differ between blocks and along each of them.
inline void fill(unsigned char* to, uint64_t bytes, uint64_t seed) {
  for (uint64_t at = 0; at < bytes; at += 512) to[at] = static_cast<unsigned char>(seed * 31 + at / 512 * 7 + 1);
  to[bytes - 1] = static_cast<unsigned char>(seed);
}
inline bool filled(const unsigned char* from, uint64_t bytes, uint64_t seed) {
  if (from[bytes - 1] != static_cast<unsigned char>(seed)) return false;
  for (uint64_t at = 0; at < bytes - 1; at += 512) {
    if (from[at] != static_cast<unsigned char>(seed * 31 + at / 512 * 7 + 1)) return false;
  }
  return true;
}

// The status of the um::Error that it throws, UM_OK when it throws none.
inline um_status status_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.what()[0] != '\0');
    return error.status();
  }
  return UM_OK;
}

}  // namespace test
