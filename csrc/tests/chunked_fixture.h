// Contents that tell allocations and places apart, and what else tests of memory for swapping share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>

#include "base/error.h"
#include "check.h"
#include "memory/movable_memory.h"

namespace test {

using um::Block;
using um::Error;
using um::Fences;
using um::HeldFence;
using um::driver::CUstream;

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kChunk = 2 * kMiB;
inline constexpr um_placement kChunked{UM_MEMORY_CHUNKED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

// An emulated device's backend, and what memory in it is made of. Its heirs' members go before it does.
struct Emulated {
  explicit Emulated(uint32_t delay_max_us = 0)
      : backend(um::Backend::open_emulated({64 * kMiB, 256 * kMiB, UM_COUNTING_ORDERED, delay_max_us, check::seed(3)})),
        current(std::make_unique<um::CurrentContext>(backend)),
        fences(std::make_unique<Fences>(backend)) {
    for (CUstream* each : {&to_device, &to_host})
      CHECK_EQ(backend.call().stream_create(each, um::driver::CU_STREAM_NON_BLOCKING), um::driver::CUDA_SUCCESS);
  }
  ~Emulated() {
    backend.hooks->fail(backend.ordinal, nullptr, 0);
    for (CUstream each : {to_device, to_host}) backend.call().stream_destroy(each);
    fences.reset();
    current.reset();
    backend.close();
  }
  Emulated(const Emulated&) = delete;
  Emulated& operator=(const Emulated&) = delete;

  // From now on the device has a thread beside this one, as a GPU has.
  void begin_helper() {
    backend.helper = std::make_shared<um::Helper>(
        [this] { CHECK_EQ(backend.call().ctx_set_current(backend.context), um::driver::CUDA_SUCCESS); });
  }
  uint64_t calls(const char* function) const { return backend.hooks->calls(backend.ordinal, function); }

  um::Backend backend;
  std::unique_ptr<um::CurrentContext> current;
  std::unique_ptr<Fences> fences;
  um::StablePool<Block> blocks;
  CUstream to_device = nullptr, to_host = nullptr;
};

inline um_chunk_options chunk_options(uint64_t budget_bytes, uint64_t host_budget_bytes) {
  um_chunk_options options{};
  options.budget_bytes = budget_bytes;
  options.host_budget_bytes = host_budget_bytes;
  options.chunk_bytes = kChunk;
  return options;
}

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

// Ends a mover and its memory. Aborts when either has kept something, unless a test has failed already.
template <class Mover>
void give_back(std::unique_ptr<Mover>* mover, std::unique_ptr<um::MovableMemory>* memory, const um::Fences& fences) {
  const bool gave_back = (*memory)->give_back();
  mover->reset();
  memory->reset();
  if (std::uncaught_exceptions() == 0 && (!gave_back || fences.live() != 0))
    std::fprintf(stderr, "something is left\n"), std::abort();
}

}  // namespace test
