// Chunked memory on a CUDA driver whose kernels, or copies, run at the latest moment that its contract allows
// (fake_libcuda/latest.h): what a wait was left out for finds wrong bytes or none, every time.
#pragma once

#include <vector>

#include "cuda_fixture.h"

namespace test {

struct LatestMoment : Cuda {
  explicit LatestMoment(uint64_t budget_chunks, uint64_t host_chunks = 0) : all(budget_chunks) {
    emulated_libcuda_legacy_is_asynchronous(1);
    set(budget_chunks, host_chunks);
  }
  void set(uint64_t budget_chunks, uint64_t host_chunks) { CHECK_OK(set_chunks(budget_chunks, host_chunks * kChunk)); }
  // From now on.
  static void kernels_are_late() { emulated_libcuda_latest(1); }
  static void copies_are_late() { emulated_libcuda_latest(2); }

  // On the host, and no chunk is taken for it yet.
  Moving reserved(uint64_t count = 1) { return allocate(count * kChunk, kChunked); }
  // On the device; the host has nothing of it.
  Moving made(unsigned char value, uint64_t count = 1) {
    Moving block = reserved(count);
    fill(nullptr, block, count * kChunk, value);
    synchronize();
    return block;
  }
  // It was on the device, as nothing is any more, and lies on the host; its chunks held something else since.
  Moving away(unsigned char value, uint64_t count = 1) {
    Moving block = made(value, count);
    free(made(200, all));
    CHECK_EQ(swaps().used_bytes, uint64_t{0});
    return block;
  }
  static void to_host(const void* block) { CHECK_OK(um_prefetch(block, kChunk, 1, nullptr)); }
  static void to_device(const void* block) { CHECK_OK(um_prefetch(block, kChunk, 0, nullptr)); }
  // Chunks of somebody else, at once, whose kernel writes to them as soon as it may.
  Moving take_chunks(uint64_t count = 1) {
    Moving other = routed(count * kChunk);
    fill(nullptr, other, count * kChunk, 7);
    return other;
  }
  // Nobody else's late work came after that kernel.
  void expect_taken(const Moving& other, uint64_t count = 1) {
    synchronize();
    expect(nullptr, other, count * kChunk, 7);
  }
  // What nobody has goes back to the driver: work that still uses it has an illegal address.
  void give_back() { CHECK_OK(um_memory_trim(handle)); }
  static std::vector<unsigned char> bytes(unsigned char value) { return std::vector<unsigned char>(kChunk, value); }
  static std::vector<unsigned char> read_out(const Moving& block) {
    std::vector<unsigned char> out(kChunk);
    CHECK_OK(um_copy_to_host(out.data(), block, kChunk));
    return out;
  }
  static void write_in(const Moving& block, unsigned char value) {
    CHECK_OK(um_copy_from_host(block, bytes(value).data(), kChunk));
  }

  const uint64_t all;
};

}  // namespace test
