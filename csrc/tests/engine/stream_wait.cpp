// um_stream_wait on two streams of the emulated device, with delays that would show a missing wait as wrong data.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "driver/driver.h"
#include "umadvise.h"

using namespace um::driver;  // NOLINT

namespace {

constexpr uint64_t kBytes = uint64_t{4} << 20;

// A device with delays, its context current, two streams that know nothing of each other, and memory for both.
struct TwoStreams {
  TwoStreams() {
    const um_emulated_options options{16 * kBytes, 16 * kBytes, UM_COUNTING_ORDERED, 300, check::seed(11)};
    CHECK_EQ(um_device_open_emulated(&options, &device), UM_OK);
    um_device_info info{};
    CHECK_EQ(um_device_query(device, &info), UM_OK);
    ordinal = info.ordinal;
    CUcontext context{};
    CHECK_EQ(call.device_primary_ctx_retain(&context, ordinal), CUDA_SUCCESS);
    CHECK_EQ(call.ctx_set_current(context), CUDA_SUCCESS);
    CHECK_EQ(call.stream_create(&first, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQ(call.stream_create(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const um_placement plain{UM_MEMORY_DEVICE, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
    CHECK_EQ(um_allocate(device, kBytes, &plain, nullptr, &block), UM_OK);
  }
  ~TwoStreams() {
    um_free(block);
    if (first != nullptr) call.stream_destroy(first);
    call.stream_destroy(second);
    call.ctx_set_current(nullptr);
    call.device_primary_ctx_release(ordinal);
    um_device_close(device);
  }
  TwoStreams(const TwoStreams&) = delete;
  TwoStreams& operator=(const TwoStreams&) = delete;

  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(block); }

  const Table& call = emulated()->call;
  um_device* device = nullptr;
  int32_t ordinal = -1;
  CUstream first{}, second{};
  void* block = nullptr;
};

TEST(a_stream_runs_after_what_the_awaited_one_was_given) {
  TwoStreams two;
  std::vector<unsigned char> source(kBytes), back(kBytes);
  for (int round = 1; round <= 20; ++round) {
    std::fill(source.begin(), source.end(), static_cast<unsigned char>(round));
    CHECK_EQ(two.call.memcpy_htod_async(two.address(), source.data(), kBytes, two.first), CUDA_SUCCESS);
    CHECK_EQ(um_stream_wait(two.device, two.second, two.first), UM_OK);
    CHECK_EQ(two.call.memcpy_dtoh_async(back.data(), two.address(), kBytes, two.second), CUDA_SUCCESS);
    CHECK_EQ(two.call.stream_synchronize(two.second), CUDA_SUCCESS);
    CHECK(back == source);
  }
}

TEST(a_stream_that_is_gone_is_waited_for_with_everything_else) {
  TwoStreams two;
  const CUstream gone = two.first;
  CHECK_EQ(two.call.stream_destroy(gone), CUDA_SUCCESS);
  two.first = nullptr;
  const uint64_t before = um_emulated_calls(two.device, "cuCtxSynchronize");
  CHECK_EQ(um_stream_wait(two.device, two.second, gone), UM_OK);
  CHECK_EQ(um_emulated_calls(two.device, "cuCtxSynchronize"), before + 1);
}

// They take turns with the device's events: one is enough.
TEST(threads_that_order_streams_take_turns) {
  TwoStreams two;
  std::atomic<bool> ok{true};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) ok = um_stream_wait(two.device, two.second, two.first) == UM_OK && ok;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ok);
  CHECK_EQ(um_emulated_calls(two.device, "cuEventCreate"), uint64_t{1});
}

TEST(a_failed_wait_says_so_and_loses_no_event) {
  TwoStreams two;
  CHECK_EQ(um_stream_wait(two.device, two.second, two.first), UM_OK);
  const uint64_t created = um_emulated_calls(two.device, "cuEventCreate");
  CHECK_EQ(um_emulated_fail(two.device, "cuStreamWaitEvent", 1), UM_OK);
  CHECK_EQ(um_stream_wait(two.device, two.second, two.first), UM_DRIVER_ERROR);
  CHECK(std::string(um_last_error()).find("ordering a stream after an event") != std::string::npos);
  CHECK_EQ(um_stream_wait(two.device, two.second, two.first), UM_OK);
  CHECK_EQ(um_emulated_calls(two.device, "cuEventCreate"), created);
}

}  // namespace
