// Unified memory on a CUDA driver: planned prefetches, and what a budget sends away, come in order with kernels that
// the host was far ahead of.
#include "latest_fixture.h"
#include "swap_fixture.h"

using test::kPage;
using test::LatestMoment;
using test::pages_on_device;
using test::read;
using test::Stream;
using um::driver::CUstream;

namespace {

constexpr uint64_t kBlock = 4 * kPage;

uint64_t calls(const char* function) { return emulated_libcuda_hooks()->calls(0, function); }

// Blocks of managed memory that are there before the step, and whose op i reads block i.
struct Paged : LatestMoment {
  explicit Paged(int count) : LatestMoment(1) {
    for (int i = 0; i < count; ++i) {
      blocks.push_back(allocate(kBlock));
      fill(nullptr, blocks.back(), kBlock, 5);
      trace.allocate(kBlock);
      serials.push_back(Device::at(blocks.back()).serial);
    }
    for (int i = 0; i < count; ++i) {
      trace.use(1000, {i});
      names.push_back(um_intern("use"));
    }
    synchronize();
  }
  void follow() {
    const um_trace columns = trace.columns();
    const um_plan rows = plan.columns();
    CHECK_OK(fixture::follow(handle, columns, &rows, names.data(), serials.data()));
  }
  // Each kernel notes how much of the watched block is on the device when it runs.
  void step(CUstream stream, const unsigned char* watched) {
    CHECK_OK(um_step_set(handle, 1));
    for (const unsigned char* block : blocks) use(stream, block, watched);
    CHECK_OK(um_step_set(handle, 0));
  }
  void use(CUstream stream, const unsigned char* block, const unsigned char* watched) {
    op_in(
        stream, {read(block, kBlock)},
        [=, this] {
          seen.push_back(pages_on_device(watched, kBlock));
          wrong += !test::holds(block, 5, kBlock);
        },
        "use");
  }

  // Memory that an op asks for, keeps, and says nothing about.
  unsigned char* made_inside() {
    CHECK_OK(um_op_begin(handle, um_intern("use"), UM_PHASE_FORWARD, um_intern("module"), 0, nullptr, 0));
    unsigned char* const made = allocate(kBlock);
    um_op_end(handle, nullptr, 0);
    fill_unannounced(made);
    return made;
  }
  static void fill_unannounced(unsigned char* block) {
    launch(nullptr, [=] { std::memset(block, 5, kBlock); });
  }

  std::vector<unsigned char*> blocks;
  fixture::Trace trace;
  fixture::Plan plan{trace};
  std::vector<uint32_t> names;
  std::vector<uint64_t> serials, seen;
};

}  // namespace

// ---- order --------------------------------------------------------------------------------------------------------

TEST(planned_pages_leave_after_every_kernel_that_was_given_before) {
  for (const bool other_stream : {false, true}) {
    Paged device(3);
    Stream side;
    device.plan.behind(2, UM_PLAN_PREFETCH, 0, 1);
    device.follow();
    device.kernels_are_late();
    device.step(other_stream ? side : CUstream{}, device.blocks[0]);
    device.check_kernels();
    CHECK(device.seen == (std::vector<uint64_t>{4, 4, 4}));
    CHECK_EQ(pages_on_device(device.blocks[0], kBlock), uint64_t{0});
  }
}

TEST(planned_pages_come_after_every_kernel_that_was_given_before) {
  for (const bool behind : {false, true}) {
    Paged device(3);
    CHECK_OK(um_prefetch(device.blocks[2], kBlock, 1, nullptr));
    device.synchronize();
    device.plan.add(UM_PLAN_PREFETCH, behind ? 0 : 1, behind, 2);
    device.follow();
    device.kernels_are_late();
    CHECK_OK(um_step_set(device, 1));
    device.use(nullptr, device.blocks[0], device.blocks[2]);
    device.op({read(device.blocks[1], kBlock)}, [] {}, "use");
    CHECK_OK(um_step_set(device, 0));
    device.check_kernels();
    CHECK(device.seen == std::vector<uint64_t>{0});
    CHECK_EQ(pages_on_device(device.blocks[2], kBlock), uint64_t{4});
  }
}

TEST(a_budget_sends_pages_away_in_the_stream_of_the_op) {
  Paged device(3);
  Stream side;
  CHECK_OK(um_budget_set(device, 2 * kBlock));
  device.synchronize();
  device.use(side, device.blocks[0], device.blocks[0]);
  device.use(side, device.blocks[1], device.blocks[0]);
  device.synchronize();
  device.kernels_are_late();
  device.use(side, device.blocks[1], device.blocks[0]);
  device.use(side, device.blocks[2], device.blocks[0]);
  device.check_kernels();
  CHECK(device.seen == (std::vector<uint64_t>{0, 4, 4, 0}));
}

// ---- what the driver has ------------------------------------------------------------------------------------------

TEST(a_budget_is_no_more_than_the_driver_has_free) {
  constexpr uint64_t kHalf = 64 * test::kMiB;
  Paged device(12);  // of 96 MiB
  for (unsigned char* block : device.blocks) device.free(block);
  device.synchronize();
  CHECK_OK(um_memory_trim(device));
  um::driver::CUdeviceptr others[2] = {};
  um_device_info info{};
  {
    const test::Current current;
    CHECK_EQ(test::driver().mem_alloc(&others[0], kHalf), um::driver::CUDA_SUCCESS);
    CHECK_OK(um_device_query(device, &info));
    CHECK_EQ(info.free_bytes, kHalf);
    CHECK_OK(um_budget_set(device, 1024 * test::kMiB));
    for (unsigned char*& block : device.blocks) {
      block = device.allocate(kBlock);
      device.fill(nullptr, block, kBlock, 5);
    }
    device.check_kernels();
    CHECK_EQ(device.memory().resident_bytes, kHalf);
    for (unsigned char* block : device.blocks) device.free(block);
    CHECK_OK(um_budget_set(device, 0));
    CHECK_OK(um_memory_trim(device));
    CHECK_EQ(test::driver().mem_alloc(&others[1], kHalf), um::driver::CUDA_SUCCESS);
    CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_budget_set(device, 1024 * test::kMiB));
    CHECK(std::string(um_last_error()).find("the driver says that 0 bytes of the device's 128 MiB") !=
          std::string::npos);
    for (const um::driver::CUdeviceptr other : others) {
      CHECK_EQ(test::driver().mem_free(other), um::driver::CUDA_SUCCESS);
    }
  }
  CHECK_OK(um_budget_set(device, 1024 * test::kMiB));
}

// ---- what libraries keep ------------------------------------------------------------------------------------------

TEST(a_budget_never_sends_a_librarys_workspace_away) {
  for (const bool budget_first : {true, false}) {
    Paged device(4);
    if (budget_first) CHECK_OK(um_budget_set(device, 3 * kBlock));
    unsigned char* const workspace = device.made_inside();
    if (!budget_first) CHECK_OK(um_budget_set(device, 3 * kBlock));
    device.synchronize();
    for (int round = 0; round < 3; ++round) {
      for (const unsigned char* block : device.blocks) device.use(nullptr, block, workspace);
    }
    device.check_kernels();
    CHECK(device.seen == std::vector<uint64_t>(12, 4));
    CHECK_EQ(device.memory().workspace_bytes, kBlock);
    device.free(workspace);
    for (const unsigned char* block : device.blocks) device.use(nullptr, block, block);
    device.check_kernels();
    CHECK_EQ(device.memory().resident_bytes, 3 * kBlock);
  }
}

TEST(what_an_op_is_given_is_no_workspace) {
  Paged device(4);
  CHECK_OK(um_budget_set(device, 3 * kBlock));
  unsigned char* const tensor = device.made_inside();
  device.fill(nullptr, tensor, kBlock, 5);
  for (const unsigned char* block : device.blocks) device.use(nullptr, block, tensor);
  device.check_kernels();
  CHECK_EQ(pages_on_device(tensor, kBlock), uint64_t{0});
}

TEST(a_workspace_keeps_no_budget_of_a_closed_device) {
  um_device* const opened = test::opened_cuda();
  const um_placement managed{UM_MEMORY_MANAGED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
  void* workspace = nullptr;
  CHECK_OK(um_budget_set(opened, 2 * kBlock));
  CHECK_OK(um_op_begin(opened, um_intern("use"), UM_PHASE_FORWARD, um_intern("module"), 0, nullptr, 0));
  CHECK_OK(um_allocate(opened, kBlock, &managed, nullptr, &workspace));
  um_op_end(opened, nullptr, 0);
  um_memory_stats before{}, after{};
  CHECK_OK(um_memory_read(opened, &before));
  CHECK_EQ(before.resident_bytes, kBlock);
  CHECK_OK(um_device_close(opened));
  CHECK_OK(um_memory_read(opened, &after));
  CHECK_EQ(after.resident_bytes, after.reserved_bytes);  // all that nobody keeps within bounds
  CHECK_EQ(um_free(workspace), 1);
  CHECK_EQ(um_owns(workspace), 0);
}

// ---- calls --------------------------------------------------------------------------------------------------------

TEST(what_one_op_asks_for_goes_out_in_one_call) {
  for (const bool batches : {true, false}) {
    Paged device(3);
    CHECK_OK(um_prefetch(device.blocks[2], kBlock, 1, nullptr));
    device.synchronize();
    device.plan.behind(2, UM_PLAN_PREFETCH, 0, 1);
    device.plan.behind(2, UM_PLAN_PREFETCH, 1, 1);
    device.plan.behind(2, UM_PLAN_PREFETCH, 2, 0);
    device.follow();
    if (!batches) {
      emulated_libcuda_fails("cuMemPrefetchBatchAsync", um::driver::CUDA_ERROR_NOT_SUPPORTED, 1, ~uint64_t{0});
    }
    const uint64_t batches_before = calls("cuMemPrefetchBatchAsync"), before = calls("cuMemPrefetchAsync");
    device.step(nullptr, device.blocks[2]);
    device.check_kernels();
    if (batches) CHECK_EQ(calls("cuMemPrefetchBatchAsync") - batches_before, uint64_t{1});
    CHECK_EQ(calls("cuMemPrefetchAsync") - before, uint64_t{batches ? 0u : 3u});
    CHECK_EQ(device.swaps().actions, int64_t{3});
    for (const int i : {0, 1, 2}) {
      CHECK_EQ(pages_on_device(device.blocks[static_cast<size_t>(i)], kBlock), uint64_t{i == 2 ? 4u : 0u});
    }
  }
}

TEST(a_batch_that_fails_is_a_wish_that_did_not_come_true) {
  Paged device(2);
  device.plan.behind(1, UM_PLAN_PREFETCH, 0, 1);
  device.plan.behind(1, UM_PLAN_PREFETCH, 1, 1);
  device.follow();
  emulated_libcuda_fails("cuMemPrefetchBatchAsync", um::driver::CUDA_ERROR_UNKNOWN, 1, 1);
  device.step(nullptr, device.blocks[0]);
  device.helper().finish();
  CHECK_EQ(device.swaps().skipped_actions, int64_t{1});
  device.step(nullptr, device.blocks[0]);
  device.check_kernels();
  CHECK_EQ(pages_on_device(device.blocks[0], kBlock), uint64_t{0});
}

TEST(a_steady_step_makes_no_events) {
  Paged device(3);
  CHECK_OK(um_discard_set(device, 1));
  device.plan.before(1, UM_PLAN_PREFETCH, 2, 0);
  device.plan.behind(1, UM_PLAN_PREFETCH, 0, 1);
  device.plan.behind(2, UM_PLAN_PREFETCH, 1, 1);
  device.follow();
  device.step(nullptr, device.blocks[0]);
  const uint64_t created = calls("cuEventCreate"), destroyed = calls("cuEventDestroy");
  for (int i = 0; i < 5; ++i) {
    device.step(nullptr, device.blocks[0]);
    CHECK_OK(um_stream_wait(device, nullptr, nullptr));
  }
  CHECK_EQ(calls("cuEventCreate"), created);
  CHECK_EQ(calls("cuEventDestroy"), destroyed);
  device.check_kernels();
}
