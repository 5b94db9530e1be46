// What the engine does otherwise on CUDA than on the emulated device: memory made inside asynchronous ops, plans over
// unified memory, discards in a stream of their own, budgets that begin with nobody knowing what is where.
#include <thread>

#include "cuda_fixture.h"
#include "held_helper.h"
#include "swap_fixture.h"

using test::Cuda;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::kPage;
using test::kPlain;
using test::pages_on_device;
using test::read;
using test::Stream;
using test::write;

namespace {

uint64_t calls(const char* function) { return emulated_libcuda_hooks()->calls(0, function); }
bool says(const std::string& text) { return std::string(um_last_error()).find(text) != std::string::npos; }

struct Asynchronous : Cuda {
  Asynchronous() { emulated_libcuda_legacy_is_asynchronous(1); }
};

// A step of one op that reads one block of managed memory, and what a plan does behind that.
struct OneOp {
  fixture::Trace trace;
  std::vector<uint32_t> names{um_intern("expect")};
  std::vector<uint64_t> serials;

  OneOp(const Cuda& device, const unsigned char* block, um_plan_kind kind, int64_t argument = 0) {
    serials.push_back(test::Device::at(block).serial);
    trace.allocate(4 * kPage);
    trace.use(1000, {0});
    fixture::Plan plan(trace);
    plan.behind(0, kind, 0, argument);
    const um_trace columns = trace.columns();
    const um_plan rows = plan.columns();
    CHECK_OK(fixture::follow(device, columns, &rows, names.data(), serials.data()));
  }
};

}  // namespace

// ---- chunks -------------------------------------------------------------------------------------------------------

TEST(what_an_op_makes_is_there_for_its_kernel_and_may_leave_afterwards) {
  Asynchronous device;
  CHECK_OK(device.set_chunks(4));
  Stream side;
  std::vector<test::Moving> made;
  for (unsigned char i = 1; i < 10; ++i) {
    const um::driver::CUstream stream = i % 2 != 0 ? side : um::driver::CUstream{};
    um_op_stream_set(stream);
    CHECK_OK(um_op_begin(device, um_intern("make"), UM_PHASE_FORWARD, 0, 0, nullptr, 0));
    test::Moving block = device.routed(kChunk, kChunked, stream);
    unsigned char* const at = block;
    device.launch(stream, [=] { std::memset(at, i, kChunk); });
    const um_shown output = shown(block);
    um_op_end(device, &output, 1);
    made.push_back(block);
  }
  CHECK_OK(um_stream_wait(device, nullptr, side));
  for (unsigned char i = 1; i < 10; ++i) device.expect(nullptr, made[i - size_t{1}], kChunk, i);
  device.check_kernels();
  CHECK(device.swaps().swap_outs >= 5);
}

TEST(an_op_that_cannot_fit_is_refused_by_name) {
  Asynchronous device;
  CHECK_OK(device.set_chunks(2));
  test::Moving block = device.allocate(3 * kChunk, kChunked);
  const um_access access = write(block, 3 * kChunk);
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY,
              um_op_begin(device, um_intern("aten::huge"), UM_PHASE_FORWARD, um_intern("layer"), 0, &access, 1));
  CHECK(says("no room for aten::huge of layer") && says("the budget is 4 MiB"));
  CHECK_EQ(device.swaps().silent_writes, int64_t{0});
}

TEST(a_prefetch_of_chunks_is_a_copy) {
  Asynchronous device;
  CHECK_OK(device.set_chunks(4));
  test::Moving block = device.allocate(2 * kChunk, kChunked);
  device.fill(nullptr, block, 2 * kChunk, 3);
  CHECK_OK(um_prefetch(block, kChunk, 1, nullptr));
  CHECK_EQ(device.swaps().swap_outs, int64_t{1});
  device.synchronize();
  CHECK_OK(um_prefetch(block, kChunk, 0, nullptr));
  device.expect(nullptr, block, 2 * kChunk, 3);
  device.check_kernels();
  CHECK_EQ(device.swaps().cancelled, int64_t{1});  // nobody took the memory
}

TEST(trimming_gives_back_what_nobody_uses_and_nothing_else) {
  Asynchronous device;
  CHECK_OK(device.set_chunks(4));
  test::Moving kept = device.allocate(kChunk, kChunked);
  device.fill(nullptr, kept, kChunk, 3);
  test::Moving gone = device.allocate(2 * kChunk, kChunked);
  device.fill(nullptr, gone, 2 * kChunk, 4);
  test::Moving plain = device.allocate(8 * kMiB, kPlain);
  const uint64_t before = device.memory().reserved_bytes;
  device.free(gone);
  device.free(plain);
  device.synchronize();
  CHECK_OK(um_memory_trim(device));
  CHECK(device.memory().reserved_bytes <= before - 8 * kMiB);
  device.expect(nullptr, kept, kChunk, 3);
  device.check_kernels();
}

// ---- unified memory under a plan ----------------------------------------------------------------------------------

TEST(planned_prefetches_run_beside_kernels) {
  Asynchronous device;
  test::Moving block = device.allocate(4 * kPage);
  device.fill(nullptr, block, 4 * kPage, 5);
  device.synchronize();
  const OneOp program(device, block, UM_PLAN_PREFETCH, 1);
  CHECK_OK(um_step_set(device, 1));
  device.expect(nullptr, block, 4 * kPage, 5);
  CHECK_OK(um_step_set(device, 0));
  device.check_kernels();
  CHECK(device.swaps().actions == 1);
  device.expect(nullptr, block, 4 * kPage, 5);
  device.check_kernels();
}

// The driver may move pages in the thread that asks: that one launches no kernels. Memory goes back after what was
// asked.
TEST(planned_prefetches_are_asked_for_by_a_helper) {
  for (const char* failing : {"", "cuMemPrefetchAsync"}) {
    Asynchronous device;
    test::Moving block = device.allocate(4 * kPage);
    device.fill(nullptr, block, 4 * kPage, 5);
    device.synchronize();
    um::Helper& helper = device.helper();
    test::Latch latch;
    const uint64_t before = calls("cuMemPrefetchAsync"), done = *failing == 0 ? 1 : 0;
    {
      const OneOp program(device, block, UM_PLAN_PREFETCH, 1);
      helper.ask([&] { latch.wait(); });
      CHECK_OK(um_step_set(device, 1));
      device.expect(nullptr, block, 4 * kPage, 5);
      CHECK_OK(um_step_set(device, 0));
      CHECK_EQ(calls("cuMemPrefetchAsync"), before);
      if (*failing != 0) emulated_libcuda_fails(failing, um::driver::CUDA_ERROR_INVALID_VALUE, 1, 1);
      latch.open();
      helper.finish();
      emulated_libcuda_fails(nullptr, 0, 0, 0);
      CHECK_EQ(calls("cuMemPrefetchAsync"), before + done);
      CHECK_EQ(device.swaps().actions, int64_t{1});
      CHECK_EQ(device.swaps().skipped_actions, int64_t{*failing != 0});
    }
    device.expect(nullptr, block, 4 * kPage, 5);
    device.check_kernels();
    const OneOp program(device, block, UM_PLAN_PREFETCH, 0);
    test::Latch late;
    helper.ask([&] { late.wait(); });
    CHECK_OK(um_step_set(device, 1));
    device.expect(nullptr, block, 4 * kPage, 5);
    CHECK_OK(um_step_set(device, 0));
    device.synchronize();
    device.free(block);
    std::thread releases([&] { late.open(); });
    CHECK_OK(um_memory_trim(device));
    releases.join();
    CHECK_EQ(calls("cuMemPrefetchAsync"), before + done + 1);
  }
}

TEST(without_concurrent_access_planned_prefetches_are_skipped) {
  emulated_libcuda_attribute(um::driver::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
  Asynchronous device;
  test::Moving block = device.allocate(4 * kPage);
  device.fill(nullptr, block, 4 * kPage, 5);
  const OneOp program(device, block, UM_PLAN_PREFETCH, 1);
  const uint64_t before = calls("cuMemPrefetchAsync");
  CHECK_OK(um_step_set(device, 1));
  device.expect(nullptr, block, 4 * kPage, 5);
  CHECK_OK(um_step_set(device, 0));
  device.check_kernels();
  CHECK_EQ(device.swaps().skipped_actions, int64_t{1});
  CHECK_EQ(calls("cuMemPrefetchAsync"), before);
}

// Only the legacy stream knows when a discard is over: whoever works in another one must not find its own data gone.
TEST(what_is_discarded_is_dead_before_anybody_else_gets_it) {
  for (const auto& [trusted, side_streams] : {std::pair{true, false}, {true, true}, {false, false}}) {
    Asynchronous device;
    if (trusted) CHECK_OK(um_discard_set(device, 1));
    Stream side;
    test::Moving other = device.allocate(kPage);
    if (side_streams) device.fill(side, other, kPage, 1);
    test::Moving block = device.allocate(4 * kPage);
    device.fill(nullptr, block, 4 * kPage, 5);
    const OneOp program(device, block, UM_PLAN_DISCARD);
    const uint64_t before = calls("cuMemDiscardBatchAsync");
    CHECK_OK(um_step_set(device, 1));
    device.expect(nullptr, block, 4 * kPage, 5);
    device.free(block);
    test::Moving next = device.allocate(4 * kPage);
    device.fill(nullptr, next, 4 * kPage, 6);
    CHECK_OK(um_step_set(device, 0));
    device.expect(nullptr, next, 4 * kPage, 6);
    device.check_kernels();
    CHECK_EQ(calls("cuMemDiscardBatchAsync") - before, uint64_t{trusted && !side_streams ? 1u : 0u});
  }
}

// ---- budgets and measures -----------------------------------------------------------------------------------------

TEST(a_budget_that_comes_late_counts_everything_as_there) {
  Cuda device;
  std::vector<unsigned char*> blocks;
  for (unsigned char i = 1; i < 9; ++i) {
    blocks.push_back(device.allocate(4 * kPage));
    std::memset(blocks.back(), i, 4 * kPage);
  }
  CHECK_OK(um_budget_set(device, 16 * kPage));
  uint64_t pages = 0;
  for (unsigned char* each : blocks) pages += pages_on_device(each, 4 * kPage);
  CHECK_EQ(pages, uint64_t{16});
  CHECK_EQ(device.memory().resident_bytes, 16 * kPage);
  for (unsigned char i = 1; i < 9; ++i) CHECK(test::holds(blocks[i - size_t{1}], i, 4 * kPage));
  CHECK_OK(um_budget_set(device, 0));
  um_memory_reset_peaks(device);
  CHECK(device.memory().resident_peak_bytes >= 16 * kPage);
}

TEST(the_link_is_measured_with_the_devices_own_clock) {
  Cuda device;
  int64_t times[2] = {};
  CHECK_OK(um_link_measure(device, kPage, 2, 1, 1, times));
  CHECK(times[0] > 0 && times[1] > 0);
  emulated_libcuda_fails("cuMemHostAlloc", um::driver::CUDA_ERROR_OUT_OF_MEMORY, 1, 1);
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_link_measure(device, kPage, 2, 1, 0, times));
  CHECK_OK(um_link_measure(device, kPage, 2, 0, 1, times));
  CHECK_EQ(times[0], int64_t{UM_UNKNOWN});
}

TEST(what_only_the_emulated_device_has_is_refused_in_words) {
  Cuda device;
  CHECK_EQ(um_emulated_calls(device, "cuMemAlloc"), uint64_t{0});
  CHECK_FAILS(UM_UNSUPPORTED, um_emulated_fail(device, "cuMemAlloc", 1));
  um_link link{};
  um_driver_costs costs{};
  CHECK_FAILS(UM_UNSUPPORTED, um_emulated_set_link(device, &link, &costs));
  um_charged charged{};
  CHECK_OK(um_emulated_charged(device, &charged));
  um_residency residency{};
  CHECK_EQ(um_residency_read(device, &residency, 1), uint64_t{0});
}
