// The core on a CUDA driver: this test is linked to a libcuda.so.1 behind which the emulated device works, so bytes,
// faults and capacity are real, and the core has only what a driver tells it.
#include <algorithm>

#include "driver/device_hooks.h"
#include "engine_fixture.h"

using test::kMiB;
using test::kPage;
using test::kPlain;
using test::read;
using test::write;

extern "C" const um::driver::DeviceHooks* emulated_libcuda_hooks(void);

namespace {

um_device* opened() {
  um_device* device = nullptr;
  CHECK_OK(um_device_open_cuda(0, &device));
  return device;
}

um::driver::DeviceTotals totals() {
  um::driver::DeviceTotals out{};
  emulated_libcuda_hooks()->totals(0, &out);
  return out;
}

uint64_t pages_on_device(const void* address, uint64_t bytes) {
  uint64_t device = 0, host = 0;
  emulated_libcuda_hooks()->residency(0, reinterpret_cast<uint64_t>(address), bytes, &device, &host);
  return device;
}

}  // namespace

TEST(the_device_is_cudas) {
  test::Device device(opened());
  um_device_info info{};
  CHECK_OK(um_device_query(device, &info));
  CHECK_EQ(std::string(info.provider), std::string("cuda"));
  CHECK_EQ(info.ordinal, 0);
  CHECK_EQ(info.total_bytes, 128 * kMiB);
  CHECK_EQ(info.counting, uint32_t{UM_COUNTING_RAW});
  um_device* second = nullptr;
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_device_open_cuda(1, &second));
}

TEST(managed_memory_of_every_advice_holds_what_is_written) {
  test::Device device(opened());
  for (uint32_t advice = 0; advice < UM_ADVICE_COUNT; ++advice) {
    unsigned char* data = device.allocate(3 * kPage, test::advised(static_cast<um_advice>(advice)));
    CHECK_EQ(pages_on_device(data, 3 * kPage), uint64_t{advice == UM_ADVICE_PREFETCH ? 3u : 0u});
    device.op({write(data, 3 * kPage)}, [&] { std::memset(data, static_cast<int>(advice) + 1, 3 * kPage); });
    device.op({read(data, 3 * kPage)},
              [&] { CHECK(test::holds(data, static_cast<unsigned char>(advice + 1), 3 * kPage)); });
    CHECK_EQ(test::Device::at(data).advice, advice);
  }
}

TEST(more_managed_memory_than_the_device_has_pages_and_holds_what_is_written) {
  test::Device device(opened());
  constexpr uint64_t kBytes = 48 * kMiB;
  std::vector<unsigned char*> data;
  for (int i = 0; i < 5; ++i) data.push_back(device.allocate(kBytes));
  const int64_t evictions_before = totals().model.evictions;
  for (int i = 0; i < 5; ++i) device.op({write(data[i], kBytes)}, [&] { std::memset(data[i], i + 1, kBytes); });
  for (int i = 0; i < 5; ++i) CHECK(test::holds(data[i], static_cast<unsigned char>(i + 1), kBytes));
  CHECK(totals().model.evictions > evictions_before);
}

TEST(a_budget_is_kept_on_the_device_itself) {
  test::Device device(opened());
  constexpr uint64_t kBytes = 8 * kMiB, kBudget = 32 * kMiB;
  CHECK_OK(um_budget_set(device, kBudget));
  std::vector<unsigned char*> data;
  for (int i = 0; i < 10; ++i) data.push_back(device.allocate(kBytes));
  for (int round = 0; round < 3; ++round) {
    for (unsigned char* each : data) {
      device.op({write(each, kBytes)}, [&] { std::memset(each, round + 1, kBytes); });
      uint64_t pages = 0;
      for (unsigned char* other : data) pages += pages_on_device(other, kBytes);
      CHECK(pages <= kBudget / kPage);
    }
  }
  CHECK_EQ(device.memory().resident_bytes, kBudget);
  CHECK_EQ(device.memory().resident_peak_bytes, kBudget);
  CHECK(device.memory().host_bytes >= 10 * kBytes - kBudget);
  for (unsigned char* each : data) CHECK(test::holds(each, 3, kBytes));
}

TEST(what_only_the_driver_could_count_is_unknown) {
  test::Device device(opened());
  um_events_enable(device, 1);
  unsigned char* data = device.allocate(kPage);
  CHECK_OK(um_step_set(device, 1));
  device.op({write(data, kPage)}, [&] { std::memset(data, 1, kPage); });
  const um_counters counters = device.counters();
  CHECK_EQ(counters.op_count, int64_t{1});
  CHECK_EQ(counters.oversized_ops, int64_t{0});
  for (const int64_t each :
       {counters.fault_groups, counters.evictions, counters.bytes_h2d[0], counters.fault_service_ns}) {
    CHECK_EQ(each, int64_t{UM_UNKNOWN});
  }
  CHECK(device.events().empty());
  CHECK_EQ(um_events_dropped(device), uint64_t{0});
}

TEST(plain_memory_lies_on_the_device_and_ends_with_it) {
  test::Device device(opened());
  unsigned char* data = device.allocate(16 * kMiB, kPlain);
  std::vector<unsigned char> bytes(16 * kMiB, 7), back(16 * kMiB);
  CHECK_OK(um_copy_from_host(data, bytes.data(), bytes.size()));
  CHECK_OK(um_copy_to_host(back.data(), data, back.size()));
  CHECK(back == bytes);
  CHECK_FAILS(UM_UNSUPPORTED, um_prefetch(data, kPage, 1, nullptr));
  void* more = nullptr;
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device, 128 * kMiB, &kPlain, nullptr, &more));
  CHECK(std::string(um_last_error()).find("out of device memory: tried to allocate 128 MiB") != std::string::npos);
}

TEST(a_prefetch_moves_pages_and_an_export_is_no_matter_of_cuda) {
  test::Device device(opened());
  unsigned char* data = device.allocate(4 * kPage);
  std::memset(data, 5, 4 * kPage);
  CHECK_EQ(pages_on_device(data, 4 * kPage), uint64_t{4});
  CHECK_OK(um_prefetch(data, 4 * kPage, 1, nullptr));
  CHECK_EQ(pages_on_device(data, 4 * kPage), uint64_t{0});
  CHECK_OK(um_prefetch(data, 4 * kPage, 0, nullptr));
  CHECK_EQ(pages_on_device(data, 4 * kPage), uint64_t{4});
  CHECK(test::holds(data, 5, 4 * kPage));
  CHECK_FAILS(UM_UNSUPPORTED, um_export(data, nullptr));
}

TEST(streams_wait_for_each_other) {
  test::Device device(opened());
  CHECK_OK(um_stream_wait(device, nullptr, nullptr));
}

// As the patched device and the one for what is not routed are.
TEST(two_devices_of_one_gpu_share_it_and_nothing_is_left_behind) {
  const uint64_t before = totals().device_bytes;
  {
    test::Device first(opened()), second(opened());
    unsigned char* managed = first.allocate(kPage);
    unsigned char* plain = second.allocate(kPage, kPlain);
    first.op({read(plain, kPage), write(managed, kPage)}, [&] { std::memset(managed, 1, kPage); });
    CHECK_EQ(first.memory().live_allocations, uint64_t{1});
    CHECK_EQ(second.memory().live_allocations, uint64_t{1});
  }
  CHECK_EQ(totals().device_bytes, before);
}
