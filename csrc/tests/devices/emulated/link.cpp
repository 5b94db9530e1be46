// The charged link. Sums are exact; of the clock only lower bounds are checked, which no slow machine can break.
#include "devices/emulated/link.h"

#include "emulated_device.h"

using namespace um::driver;  // NOLINT
using test::EmulatedDevice;
using test::kBlock;
using test::kMiB;
using um::now_ns;

namespace {

// A megabyte takes 1 ms to the device and 2 ms back, or twice that when both directions copy.
constexpr um_link kLink{{50'000, 70'000}, {1e9, 0.5e9}, {0.5e9, 0.25e9}, {1, 1}};
constexpr int64_t kBlockH2d = 50'000 + 2'097'152, kBlockD2h = 70'000 + 2 * 2'097'152;
// Distinct powers of ten, so that a sum shows what it is made of.
constexpr um_driver_costs kCosts{1'000'000, 100'000, 10'000, 1'000, 200'000, 20'000, 2'000, 300, 30, 0, 500};

um_charged charged(const EmulatedDevice& device) {
  um_charged out{};
  device.hooks.charged(device.ordinal, &out);
  return out;
}

// What one piece of work charged, and at least how long it must have taken.
template <class Work>
void expect(const EmulatedDevice& device, int64_t h2d_ns, int64_t d2h_ns, int64_t driver_ns, int64_t least_ns,
            const Work& work) {
  const um_charged before = charged(device);
  const int64_t start = now_ns();
  work();
  const int64_t took = now_ns() - start;
  const um_charged after = charged(device);
  CHECK_EQ(after.copy_ns[0] - before.copy_ns[0], h2d_ns);
  CHECK_EQ(after.copy_ns[1] - before.copy_ns[1], d2h_ns);
  CHECK_EQ(after.driver_ns - before.driver_ns, driver_ns);
  CHECK(took >= least_ns);
}

struct Streams {
  explicit Streams(const EmulatedDevice& on) : device(on) {
    for (CUstream& stream : each)
      CHECK_EQ(device.driver.call.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  ~Streams() {
    for (const CUstream stream : each) device.driver.call.stream_destroy(stream);
  }
  void synchronize() const {
    for (const CUstream stream : each) CHECK_EQ(device.driver.call.stream_synchronize(stream), CUDA_SUCCESS);
  }
  const EmulatedDevice& device;
  CUstream each[2] = {};
};

unsigned char* plain(const EmulatedDevice& device, uint64_t bytes) {
  CUdeviceptr address = 0;
  CHECK_EQ(device.driver.call.mem_alloc(&address, bytes), CUDA_SUCCESS);
  return reinterpret_cast<unsigned char*>(address);
}

}  // namespace

TEST(nothing_is_charged_without_a_link) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(32 * kMiB);
  for (uint64_t at = 0; at < 32 * kMiB; at += kBlock) data[at] = 1;
  CHECK_EQ(device.prefetch(data, 8 * kMiB, false), CUDA_SUCCESS);
  const um_charged nothing = charged(device);
  CHECK_EQ(nothing.copy_ns[0] + nothing.copy_ns[1] + nothing.driver_ns, 0);
  device.free(data);
}

TEST(copies_of_one_direction_queue_up_on_all_streams_together) {
  EmulatedDevice device(32 * kMiB);
  device.hooks.set_link(device.ordinal, &kLink, &kCosts);
  const Streams streams(device);
  unsigned char* data = plain(device, 16 * kMiB);
  std::vector<unsigned char> host(16 * kMiB, 7);
  const auto& call = device.driver.call;
  expect(device, 4 * (50'000 + 1'000'000), 0, 0, 4 * (50'000 + 1'000'000), [&] {
    for (int i = 0; i < 4; ++i) {
      CHECK_EQ(call.memcpy_htod_async(EmulatedDevice::as_pointer(data + i * kBlock), host.data(), 1'000'000,
                                      streams.each[i % 2]),
               CUDA_SUCCESS);
    }
    streams.synchronize();
  });
  // One driver call is one copy, however many blocks it spans.
  expect(device, 0, 70'000 + 16'000'000, 0, 70'000 + 16'000'000, [&] {
    CHECK_EQ(call.memcpy_dtoh_async(host.data(), EmulatedDevice::as_pointer(data), 8'000'000, nullptr), CUDA_SUCCESS);
  });
  CHECK_EQ(+host[kBlock], 7);
  device.free(data);
}

TEST(both_directions_at_once_are_slower_than_one_and_faster_than_one_after_the_other) {
  EmulatedDevice device(32 * kMiB);
  device.hooks.set_link(device.ordinal, &kLink, &kCosts);
  const Streams streams(device);
  unsigned char* data = plain(device, 16 * kMiB);
  std::vector<unsigned char> in(8'000'000, 1), out(8'000'000);
  const int64_t start = now_ns();
  CHECK_EQ(
      device.driver.call.memcpy_dtoh_async(out.data(), EmulatedDevice::as_pointer(data), 8'000'000, streams.each[0]),
      CUDA_SUCCESS);
  CHECK_EQ(device.driver.call.memcpy_htod_async(EmulatedDevice::as_pointer(data + 8 * kMiB), in.data(), 8'000'000,
                                                streams.each[1]),
           CUDA_SUCCESS);
  streams.synchronize();
  CHECK(now_ns() - start >= 70'000 + 16'000'000);
  const um_charged sums = charged(device);
  CHECK(sums.copy_ns[0] >= 50'000 + 8'000'000 && sums.copy_ns[0] <= 50'000 + 16'000'000);
  CHECK(sums.copy_ns[1] >= 70'000 + 16'000'000 && sums.copy_ns[1] <= 70'000 + 32'000'000);
  device.free(data);
}

TEST(a_fault_takes_its_service_its_copy_and_what_must_leave) {
  EmulatedDevice device(8 * kMiB, 0, UM_COUNTING_RAW);
  unsigned char* data = device.managed(16 * kMiB);
  volatile unsigned char* touch = data;
  for (uint64_t at = 0; at < 16 * kMiB; at += kBlock) touch[at] = 3;  // the first four blocks have left again
  device.hooks.set_link(device.ordinal, &kLink, &kCosts);
  constexpr int64_t kFault = 1'000'000 + 100'000, kEvict = 200'000;
  expect(device, kBlockH2d, kBlockD2h, kFault + kEvict, kFault + kEvict + kBlockH2d + kBlockD2h,
         [&] { CHECK_EQ(+touch[0], 3); });
  expect(device, 0, 0, 0, 0, [&] { touch[1] = 4; });  // it is there
  // Services are serial, also those of one op in ordered counting.
  expect(device, 2 * kBlockH2d, 2 * kBlockD2h, 2 * (kFault + kEvict), 2 * (kFault + kEvict + kBlockH2d + kBlockD2h),
         [&] { device.hooks.touch(device.ordinal, reinterpret_cast<uint64_t>(data + kBlock), 2 * kBlock, false); });
  // The service's time counts as stall.
  CHECK(device.totals().stood.fault_ns() >= 3 * (kFault + kEvict + kBlockH2d + kBlockD2h));
  device.free(data);
}

TEST(a_first_touch_crosses_nothing) {
  EmulatedDevice device(16 * kMiB, 0, UM_COUNTING_RAW);
  device.hooks.set_link(device.ordinal, &kLink, &kCosts);
  unsigned char* data = device.managed(2 * kBlock);
  expect(device, 0, 0, 1'011'000, 1'011'000, [&] { data[0] = 1; });
  device.free(data);
  data = device.managed(2 * kBlock);  // a new block at the same address
  expect(device, 0, 0, 1'011'000, 1'011'000, [&] { data[0] = 1; });
  device.free(data);
}

TEST(a_prefetch_is_one_copy_a_block_and_a_touch_waits_for_its_own) {
  EmulatedDevice device(32 * kMiB);
  unsigned char* data = device.managed(16 * kMiB);
  for (uint64_t at = 0; at < 16 * kMiB; at += kBlock) data[at] = 5;
  CHECK_EQ(device.prefetch(data, 16 * kMiB, true), CUDA_SUCCESS);
  um_driver_costs costs = kCosts;
  costs.prefetch_bytes_per_s = 0.5e9;
  device.hooks.set_link(device.ordinal, &kLink, &costs);
  const Streams streams(device);
  constexpr int64_t kSlow = 50'000 + 2 * 2'097'152;
  expect(device, 8 * kSlow, 0, 20'000 + 8 * 2'000, 20'000 + 2'000 + 8 * kSlow, [&] {
    CHECK_EQ(device.prefetch(data, 16 * kMiB, false, streams.each[0]), CUDA_SUCCESS);
    streams.synchronize();
  });
  expect(device, 0, 8 * kBlockD2h, 20'000 + 8 * 2'000, 20'000 + 2'000 + 8 * kBlockD2h, [&] {
    CHECK_EQ(device.prefetch(data, 16 * kMiB, true, streams.each[0]), CUDA_SUCCESS);
    streams.synchronize();
  });
  expect(device, 0, 0, 20'000 + 8 * 500, 20'000, [&] {  // all there already
    CHECK_EQ(device.prefetch(data, 16 * kMiB, true, streams.each[0]), CUDA_SUCCESS);
    streams.synchronize();
  });
  // In ordered counting an op begins when its blocks have arrived, not when their page tables have.
  const int64_t start = now_ns();
  CHECK_EQ(device.prefetch(data, 4 * kBlock, false, streams.each[0]), CUDA_SUCCESS);
  const auto last = reinterpret_cast<uint64_t>(data + 3 * kBlock);
  uint64_t on_device = 0, on_host = 0;
  while (on_device == 0) device.hooks.residency(device.ordinal, last, kBlock, &on_device, &on_host);
  CHECK(!device.hooks.touch(device.ordinal, last, kBlock, false));
  CHECK(now_ns() - start >= 4 * kSlow);
  streams.synchronize();
  CHECK_EQ(+data[3 * kBlock], 5);
  device.free(data);
}

TEST(advice_takes_its_call_and_read_mostly_the_blocks_that_have_contents) {
  EmulatedDevice device(32 * kMiB);
  device.hooks.set_link(device.ordinal, &kLink, &kCosts);
  unsigned char* data = device.managed(4 * kBlock);
  expect(device, 0, 0, 300, 300,
         [&] { CHECK_EQ(device.advise(data, 4 * kBlock, CU_MEM_ADVISE_SET_ACCESSED_BY), CUDA_SUCCESS); });
  data[0] = data[kBlock] = 1;
  expect(device, 0, 0, 300 + 2 * 30, 300,
         [&] { CHECK_EQ(device.advise(data, 4 * kBlock, CU_MEM_ADVISE_SET_READ_MOSTLY), CUDA_SUCCESS); });
  device.free(data);
}

TEST(plain_memory_waits_for_what_must_leave_for_it) {
  EmulatedDevice device(16 * kMiB);
  unsigned char* data = device.managed(16 * kMiB);
  for (uint64_t at = 0; at < 16 * kMiB; at += kBlock) data[at] = 5;
  device.hooks.set_link(device.ordinal, &kLink, &kCosts);
  unsigned char* taken = nullptr;
  expect(device, 0, 2 * kBlockD2h, 2 * 200'000, 2 * kBlockD2h, [&] { taken = plain(device, 2 * kBlock); });
  device.free(taken);
  device.free(data);
}

TEST(a_measured_link_is_the_one_that_is_charged) {
  um_device* device = nullptr;
  const um_emulated_options options{32 * kMiB, 64 * kMiB, UM_COUNTING_ORDERED, 0, 0};
  CHECK_EQ(um_device_open_emulated(&options, &device), UM_OK);
  CHECK_EQ(um_emulated_set_link(device, &kLink, &kCosts), UM_OK);
  int64_t ns[2] = {};
  CHECK_EQ(um_link_measure(device, 1'000'000, 3, 1, 0, ns), UM_OK);
  CHECK(ns[0] >= 50'000 + 1'000'000);
  CHECK_EQ(ns[1], UM_UNKNOWN);
  CHECK_EQ(um_link_measure(device, 1'000'000, 3, 1, 1, ns), UM_OK);
  CHECK(ns[0] >= 50'000 + 1'000'000 && ns[1] >= 70'000 + 2'000'000);
  CHECK_EQ(um_link_measure(device, 0, 3, 1, 1, ns), UM_INVALID_ARGUMENT);
  um_charged charged{};
  CHECK_EQ(um_emulated_charged(device, &charged), UM_OK);
  CHECK(charged.copy_ns[0] >= 8 * 1'050'000);  // one to warm up and three, twice
  // Every call of it may fail; all is given back all the same.
  for (uint64_t nth = 1; nth <= 40; ++nth) {
    CHECK_EQ(um_emulated_fail(device, nullptr, nth), UM_OK);
    const um_status status = um_link_measure(device, 1000, 2, 1, 1, ns);
    CHECK(status == UM_OK || status == UM_DRIVER_ERROR || status == UM_OUT_OF_DEVICE_MEMORY);
  }
  CHECK_EQ(um_emulated_fail(device, nullptr, 0), UM_OK);
  CHECK_EQ(um_device_close(device), UM_OK);
}
