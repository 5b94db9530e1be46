// Chunked memory on a CUDA driver whose kernels, or copies, run at the latest moment that its contract allows
// (fake_libcuda/latest.h): what a wait was left out for finds wrong bytes or none, every time.
#pragma once

#include <vector>

#include "cuda_fixture.h"

namespace test {

struct LatestMoment : Cuda {
  explicit LatestMoment(uint64_t budget_chunks, uint64_t host_chunks = 0) {
    emulated_libcuda_legacy_is_asynchronous(1);
    set(budget_chunks, host_chunks);
  }
  void set(uint64_t budget_chunks, uint64_t host_chunks) {
    CHECK_OK(set_chunks(budget_chunks, UM_HOST_MAPPED_NOT, host_chunks * kChunk));
  }
  // From now on.
  static void kernels_are_late() { emulated_libcuda_latest(1); }
  static void copies_are_late() { emulated_libcuda_latest(2); }

  // No chunk is taken for it yet, and it lies elsewhere than what comes later.
  unsigned char* reserved(uint64_t count = 1) { return allocate(count * kChunk, kChunked); }
  // On the device; the host has nothing of it.
  unsigned char* made(unsigned char value, uint64_t count = 1) {
    unsigned char* block = reserved(count);
    fill(nullptr, block, count * kChunk, value);
    synchronize();
    return block;
  }
  // It was on the device, and has left; its chunks hold something else since.
  unsigned char* away(unsigned char value, uint64_t count = 1) {
    unsigned char* block = made(value, count);
    to_host(block);
    synchronize();
    op({});  // the engine hears of it
    CHECK_EQ(swaps().used_bytes, uint64_t{0});
    free(made(200, count));
    return block;
  }
  static void to_host(const void* block) { CHECK_OK(um_prefetch(block, kChunk, 1, nullptr)); }
  static void to_device(const void* block) { CHECK_OK(um_prefetch(block, kChunk, 0, nullptr)); }
  // Somebody takes all chunks of the budget, which lie elsewhere from then on.
  void take_chunks(unsigned char* elsewhere, uint64_t count = 1) {
    fill(nullptr, elsewhere, count * kChunk, 7);
    expect(nullptr, elsewhere, count * kChunk, 7);
  }
  static std::vector<unsigned char> bytes(unsigned char value) { return std::vector<unsigned char>(kChunk, value); }
  static std::vector<unsigned char> read_out(const unsigned char* block) {
    std::vector<unsigned char> out(kChunk);
    CHECK_OK(um_copy_to_host(out.data(), block, kChunk));
    return out;
  }
  static void write_in(unsigned char* block, unsigned char value) {
    CHECK_OK(um_copy_from_host(block, bytes(value).data(), kChunk));
  }
};

}  // namespace test
