// Host memory for copies, on an emulated device whose copies take time: who may use it when, and how much there is.
#include "memory/host_copies.h"

#include <cstring>
#include <random>

#include "chunked_fixture.h"
#include "held_helper.h"

using test::fill;
using test::filled;
using test::HeldFence;
using test::kMiB;
using test::status_of;
using um::Block;
using um::Fences;
using um::HostCopies;
using um::driver::CUstream;

namespace {

struct Rig : test::Emulated {
  explicit Rig(uint64_t budget_bytes, uint32_t delay_max_us = 0)
      : Emulated(delay_max_us), copies(std::make_unique<HostCopies>(nullptr, backend, *fences, blocks, budget_bytes)) {
    CHECK_EQ(backend.call().mem_alloc(&device, 8 * kMiB), um::driver::CUDA_SUCCESS);
  }
  ~Rig() {
    backend.hooks->fail(backend.ordinal, nullptr, 0);
    backend.call().mem_free(device);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  std::unique_ptr<HostCopies> copies;
  um::driver::CUdeviceptr device = 0;
};

unsigned char* data(const Block* block) { return reinterpret_cast<unsigned char*>(block->address); }

}  // namespace

TEST(many_copies_share_few_slabs) {
  Rig rig(64 * kMiB);
  std::vector<Block*> all;
  for (uint64_t i = 0; i < 20; ++i) all.push_back(rig.copies->take(1000 + i * 4096, nullptr));
  CHECK_EQ(rig.calls("cuMemHostAlloc"), uint64_t{1});
  for (uint64_t i = 0; i < 20; ++i) fill(data(all[i]), 1000 + i * 4096, i);
  for (uint64_t i = 0; i < 20; ++i) CHECK(filled(data(all[i]), 1000 + i * 4096, i));
  for (Block* each : all) rig.copies->give(each, 0);
  CHECK_EQ(rig.copies->in_use.now, uint64_t{0});
}

TEST(there_is_no_more_than_the_budget) {
  Rig rig(8 * kMiB);
  Block* block = rig.copies->take(6 * kMiB, nullptr);
  CHECK(block != nullptr);
  CHECK_EQ(rig.copies->created_bytes(), 8 * kMiB);
  CHECK(rig.copies->take(4 * kMiB, nullptr) == nullptr);
  rig.copies->set_budget(16 * kMiB);
  Block* more = rig.copies->take(4 * kMiB, nullptr);
  CHECK(more != nullptr);
  rig.copies->give(more, 0);
  rig.copies->set_budget(8 * kMiB);  // the second slab goes, the first is in use
  CHECK_EQ(rig.copies->created_bytes(), 8 * kMiB);
  rig.copies->give(block, 0);
  CHECK_EQ(status_of([&] { rig.copies->set_budget(kMiB); }), UM_INVALID_ARGUMENT);
  CHECK(rig.copies->give_back());
  CHECK_EQ(rig.copies->created_bytes(), uint64_t{0});
}

// What arrives from memory that the next departure takes over must be read before it is written to.
TEST(a_departure_waits_in_its_stream_for_who_still_reads_the_memory) {
  Rig rig(8 * kMiB, 2000);
  constexpr uint64_t kBytes = 4 * kMiB;
  const um::driver::Table& call = rig.backend.call();
  for (uint64_t round = 0; round < 12; ++round) {
    Block* first = rig.copies->take(kBytes, nullptr);
    fill(data(first), kBytes, round);
    CHECK_EQ(call.memcpy_htod_async(rig.device, data(first), kBytes, rig.to_device), um::driver::CUDA_SUCCESS);
    const HeldFence arrived(*rig.fences, rig.fences->record(&rig.to_device, 1));
    rig.copies->give(first, arrived);
    Block* second = rig.copies->take(kBytes, &rig.to_host);
    CHECK(second->address == first->address || second == first);
    CHECK_EQ(call.memcpy_dtoh_async(data(second), rig.device + 4 * kMiB, kBytes, rig.to_host),
             um::driver::CUDA_SUCCESS);
    const HeldFence left(*rig.fences, rig.fences->record(&rig.to_host, 1));
    CHECK_EQ(call.stream_synchronize(rig.to_device), um::driver::CUDA_SUCCESS);
    std::vector<unsigned char> seen(kBytes);
    CHECK_EQ(call.memcpy_dtoh_async(seen.data(), rig.device, kBytes, rig.to_device), um::driver::CUDA_SUCCESS);
    CHECK_EQ(call.stream_synchronize(rig.to_device), um::driver::CUDA_SUCCESS);
    CHECK(filled(seen.data(), kBytes, round));
    rig.copies->give(second, left);
  }
  CHECK_EQ(rig.copies->created_bytes(), 8 * kMiB);
}

TEST(the_cpu_waits_for_a_copy_that_still_writes) {
  Rig rig(8 * kMiB, 2000);
  constexpr uint64_t kBytes = 4 * kMiB;
  const um::driver::Table& call = rig.backend.call();
  for (uint64_t round = 0; round < 12; ++round) {
    Block* first = rig.copies->take(kBytes, &rig.to_host);
    CHECK_EQ(call.memcpy_dtoh_async(data(first), rig.device, kBytes, rig.to_host), um::driver::CUDA_SUCCESS);
    const HeldFence left(*rig.fences, rig.fences->record(&rig.to_host, 1));
    rig.copies->give(first, left);
    Block* second = rig.copies->take(kBytes, nullptr);
    fill(data(second), kBytes, round);
    CHECK_EQ(call.stream_synchronize(rig.to_host), um::driver::CUDA_SUCCESS);
    CHECK(filled(data(second), kBytes, round));
    rig.copies->give(second, 0);
  }
}

TEST(a_driver_that_has_no_more_gives_less_and_then_nothing) {
  Rig rig(64 * kMiB);
  CHECK(rig.backend.hooks->fail(rig.backend.ordinal, "cuMemHostAlloc", 1));
  Block* block = nullptr;
  const um_status status = status_of([&] { block = rig.copies->take(2 * kMiB, nullptr); });
  CHECK(status == UM_OK || block == nullptr);
  rig.backend.hooks->fail(rig.backend.ordinal, nullptr, 0);
  if (block != nullptr) rig.copies->give(block, 0);
  block = rig.copies->take(2 * kMiB, nullptr);
  CHECK(block != nullptr);
  rig.copies->give(block, 0);
}

TEST(from_the_second_slab_on_a_helper_makes_the_next_one) {
  Rig rig(80 * kMiB);
  rig.begin_helper();
  std::vector<Block*> all;
  const auto take = [&](uint64_t slabs) {  // of 16 MiB
    all.push_back(rig.copies->take(16 * kMiB, nullptr));
    CHECK(all.back() != nullptr);
    fill(data(all.back()), 16 * kMiB, all.size());
    rig.backend.helper->finish();
    CHECK_EQ(rig.calls("cuMemHostAlloc"), slabs);
    CHECK_EQ(rig.copies->created_bytes(), slabs * 16 * kMiB);
  };
  take(1);
  take(3);
  take(4);
  take(5);
  take(5);  // the budget's end
  CHECK(rig.copies->take(kMiB, nullptr) == nullptr);
  for (uint64_t i = 0; i < all.size(); ++i) CHECK(filled(data(all[i]), 16 * kMiB, i + 1));
  for (Block* each : all) rig.copies->give(each, 0);
  CHECK(rig.copies->give_back());
  CHECK_EQ(rig.copies->created_bytes(), uint64_t{0});
}

TEST(a_slab_that_was_made_ahead_goes_back_unused) {
  for (const char* failing : {"", "cuMemHostAlloc", "cuMemFreeHost"}) {
    Rig rig(80 * kMiB);
    rig.begin_helper();
    Block* first = rig.copies->take(16 * kMiB, nullptr);
    test::Latch latch;
    rig.backend.helper->ask([&] { latch.wait(); });
    Block* second = rig.copies->take(16 * kMiB, nullptr);
    CHECK_EQ(rig.copies->created_bytes(), 48 * kMiB);
    if (*failing != 0) CHECK(rig.backend.hooks->fail(rig.backend.ordinal, failing, 1));
    latch.open();
    rig.copies->give(first, 0);
    rig.copies->give(second, 0);
    CHECK_EQ(rig.copies->give_back(), std::strcmp(failing, "cuMemFreeHost") != 0);
    CHECK(rig.copies->give_back());
    CHECK_EQ(rig.copies->created_bytes(), uint64_t{0});
  }
}

TEST(a_slab_ahead_that_is_too_small_makes_room_for_one_that_is_not) {
  Rig rig(96 * kMiB);
  rig.begin_helper();
  for (int i = 0; i < 2; ++i) CHECK(rig.copies->take(16 * kMiB, nullptr) != nullptr);
  Block* large = rig.copies->take(64 * kMiB, nullptr);  // with a slab ahead there are 48 MiB left
  CHECK(large != nullptr);
  CHECK_EQ(rig.copies->created_bytes(), 96 * kMiB);
}
