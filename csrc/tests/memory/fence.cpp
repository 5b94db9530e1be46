// Fences on an emulated device.
#include "memory/fence.h"

#include "chunked_fixture.h"

// Which waits there are grows with each join; walked way by way these would be more than 10^12.
TEST(a_stream_waits_once_for_what_fences_have_in_common) {
  test::Emulated device;
  um::Fences& fences = *device.fences;
  const auto& call = device.backend.call();
  um::driver::CUstream streams[3] = {};
  for (um::driver::CUstream& each : streams)
    CHECK_EQ(call.stream_create(&each, um::driver::CU_STREAM_NON_BLOCKING), um::driver::CUDA_SUCCESS);
  um::Fences::Fence before = fences.record(&streams[0], 1), last = fences.record(&streams[1], 1);
  for (int i = 0; i < 60; ++i) {
    const um::Fences::Fence next = fences.join(before, last);
    fences.replace(&before, last);
    last = next;
  }
  int waits = 0;
  fences.before_waits([&](um::driver::CUstream) { ++waits; });
  fences.order(streams[2], last, um::Wait::op_after_arrival);
  CHECK_EQ(waits, 2);
  fences.release(before);
  fences.release(last);
  CHECK_EQ(fences.live(), uint64_t{0});
  for (const um::driver::CUstream each : streams) CHECK_EQ(call.stream_destroy(each), um::driver::CUDA_SUCCESS);
}
