// Streams and events of the emulated device, with delays that would show a missing wait as wrong data.
#include <thread>

#include "emulated_device.h"

using namespace um::driver;  // NOLINT
using test::EmulatedDevice;
using test::kMiB;

TEST(copies_on_two_streams_are_ordered_by_an_event_alone) {
  EmulatedDevice device(32 * kMiB, 300);
  const auto& call = device.driver.call;
  CUstream in{}, out{};
  CUevent arrived{};
  CHECK_EQ(call.stream_create(&in, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CHECK_EQ(call.stream_create(&out, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CHECK_EQ(call.event_create(&arrived, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  unsigned char* data = device.managed(4 * kMiB);
  std::vector<unsigned char> source(4 * kMiB), back(4 * kMiB);
  for (int round = 1; round <= 20; ++round) {
    std::fill(source.begin(), source.end(), static_cast<unsigned char>(round));
    CHECK_EQ(call.memcpy_htod_async(EmulatedDevice::as_pointer(data), source.data(), source.size(), in), CUDA_SUCCESS);
    CHECK_EQ(call.event_record(arrived, in), CUDA_SUCCESS);
    CHECK_EQ(call.stream_wait_event(out, arrived, 0), CUDA_SUCCESS);
    CHECK_EQ(call.memcpy_dtoh_async(back.data(), EmulatedDevice::as_pointer(data), back.size(), out), CUDA_SUCCESS);
    CHECK_EQ(call.stream_synchronize(out), CUDA_SUCCESS);
    CHECK(back == source);
  }
  CHECK_EQ(call.event_destroy(arrived), CUDA_SUCCESS);
  CHECK_EQ(call.stream_destroy(in), CUDA_SUCCESS);
  CHECK_EQ(call.stream_destroy(out), CUDA_SUCCESS);
  device.free(data);
}

TEST(the_legacy_stream_waits_for_blocking_streams_and_not_for_others) {
  EmulatedDevice device(32 * kMiB, 1000);
  const auto& call = device.driver.call;
  CUstream blocking{}, free_running{}, gate{};
  CUevent opened{};
  CHECK_EQ(call.stream_create(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  CHECK_EQ(call.stream_create(&free_running, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CHECK_EQ(call.stream_create(&gate, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CHECK_EQ(call.event_create(&opened, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  unsigned char* data = device.managed(2 * kMiB);
  for (const unsigned char value : {5, 4, 3, 2, 1}) {  // a wait that is missing is not caught up with
    CHECK_EQ(call.memset_d8_async(EmulatedDevice::as_pointer(data), value, 2 * kMiB, blocking), CUDA_SUCCESS);
  }
  unsigned char seen = 0;
  CHECK_EQ(call.memcpy_dtoh_async(&seen, EmulatedDevice::as_pointer(data), 1, nullptr), CUDA_SUCCESS);
  CHECK_EQ(+seen, 1);
  // Events: never recorded counts as finished; the time between two is not negative.
  CUevent later{};
  CHECK_EQ(call.event_create(&later, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  CHECK_EQ(call.event_query(opened), CUDA_SUCCESS);
  CHECK_EQ(call.event_record(opened, gate), CUDA_SUCCESS);
  CHECK_EQ(call.stream_wait_event(free_running, opened, 0), CUDA_SUCCESS);
  CHECK_EQ(call.event_record(later, free_running), CUDA_SUCCESS);
  CHECK_EQ(call.event_synchronize(later), CUDA_SUCCESS);
  float milliseconds = -1;
  CHECK_EQ(call.event_elapsed_time(&milliseconds, opened, later), CUDA_SUCCESS);
  CHECK(milliseconds >= 0);
  CHECK_EQ(call.ctx_synchronize(), CUDA_SUCCESS);
  CHECK_EQ(call.stream_query(free_running), CUDA_SUCCESS);
  for (const CUstream stream : {blocking, free_running, gate}) CHECK_EQ(call.stream_destroy(stream), CUDA_SUCCESS);
  CHECK_EQ(call.stream_synchronize(gate), CUDA_ERROR_INVALID_HANDLE);
  for (const CUevent event : {opened, later}) CHECK_EQ(call.event_destroy(event), CUDA_SUCCESS);
  device.free(data);
}

TEST(an_event_that_a_gone_stream_did_not_take_is_not_waited_for) {
  EmulatedDevice device(16 * kMiB);
  const auto& call = device.driver.call;
  CUstream gone{};
  CUevent event{};
  CHECK_EQ(call.stream_create(&gone, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CHECK_EQ(call.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  CHECK_EQ(call.stream_destroy(gone), CUDA_SUCCESS);
  CHECK_EQ(call.event_record(event, gone), CUDA_ERROR_INVALID_HANDLE);
  CHECK_EQ(call.event_query(event), CUDA_SUCCESS);  // as never recorded
  CHECK_EQ(call.event_synchronize(event), CUDA_SUCCESS);
  CHECK_EQ(call.event_destroy(event), CUDA_SUCCESS);
}

TEST(memory_is_freed_after_what_streams_still_do_with_it) {
  EmulatedDevice device(16 * kMiB, 3000);
  const auto& call = device.driver.call;
  const std::vector<unsigned char> source(4 * kMiB, 3);
  CUstream stream{};
  CHECK_EQ(call.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (int round = 0; round < 5; ++round) {
    unsigned char* data = device.managed(4 * kMiB);
    CHECK_EQ(call.memcpy_htod_async(EmulatedDevice::as_pointer(data), source.data(), source.size(), stream),
             CUDA_SUCCESS);
    device.free(data);
    CHECK_EQ(call.stream_query(stream), CUDA_SUCCESS);
  }
  CHECK_EQ(call.stream_destroy(stream), CUDA_SUCCESS);
}

TEST(prefetch_in_a_stream_races_with_faults_and_loses_nothing) {
  EmulatedDevice device(16 * kMiB, 100, UM_COUNTING_RAW);
  CUstream stream{};
  CHECK_EQ(device.driver.call.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const uint64_t bytes = 32 * kMiB;
  unsigned char* data = device.managed(bytes);
  for (int round = 1; round <= 6; ++round) {
    CHECK_EQ(device.prefetch(data, bytes, false, stream), CUDA_SUCCESS);
    CHECK_EQ(device.prefetch(data, bytes, true, stream), CUDA_SUCCESS);
    for (uint64_t i = 0; i < bytes; i += 4096) {
      CHECK_EQ(+data[i], round - 1);
      data[i] = static_cast<unsigned char>(round);
    }
  }
  CHECK_EQ(device.driver.call.stream_synchronize(stream), CUDA_SUCCESS);
  for (uint64_t i = 0; i < bytes; i += 4096) CHECK_EQ(+data[i], 6);
  CHECK_EQ(device.driver.call.stream_destroy(stream), CUDA_SUCCESS);
  device.free(data);
}
