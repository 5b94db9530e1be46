// Residency by tag: what the device counts as blocks come and go against a walk over all of them after every step, and
// against figures worked out by hand.
#include <algorithm>
#include <random>
#include <thread>

#include "emulated_device.h"

using namespace um::driver;  // NOLINT
using test::EmulatedDevice;
using test::kBlock;
using test::kMiB;

namespace {

struct Range {
  unsigned char* data;
  uint32_t tag;
  uint64_t blocks;
  bool plain;
};

void tag(const EmulatedDevice& device, const Range& range) {
  device.hooks.tag(device.ordinal, EmulatedDevice::as_pointer(range.data), range.blocks * kBlock, range.tag);
}

uint64_t blocks_there(const EmulatedDevice& device, const Range& range) {
  uint64_t on_device = 0, on_host = 0;
  device.hooks.residency(device.ordinal, EmulatedDevice::as_pointer(range.data), range.blocks * kBlock, &on_device,
                         &on_host);
  return on_device;
}

// One block at a time changes hands, or blocks only come or only go: the most seen between steps is the most there was.
struct Walk {
  uint64_t now[um::driver::kResidencyTags] = {}, peak[um::driver::kResidencyTags] = {}, all_peak = 0;

  void look(const EmulatedDevice& device, const std::vector<Range>& ranges) {
    uint64_t all = 0;
    std::fill(std::begin(now), std::end(now), 0);
    for (const Range& range : ranges) {
      const uint64_t blocks = blocks_there(device, range);
      now[range.tag] += blocks;
      all += blocks;
    }
    for (uint32_t i = 0; i < um::driver::kResidencyTags; ++i) peak[i] = std::max(peak[i], now[i]);
    all_peak = std::max(all_peak, all);
    const um::driver::DeviceTotals totals = device.totals();
    CHECK_EQ(totals.device_bytes, all * kBlock);
    CHECK_EQ(totals.device_peak_bytes, all_peak * kBlock);
    for (uint32_t i = 0; i < um::driver::kResidencyTags; ++i) {
      CHECK_EQ(totals.tag_bytes[i], now[i] * kBlock);
      CHECK_EQ(totals.tag_peak_bytes[i], peak[i] * kBlock);
    }
  }
};

}  // namespace

TEST(two_tags_that_push_each_other_out) {
  EmulatedDevice device(8 * kBlock);
  const Range weights{device.managed(3 * kBlock), 0, 3, false}, outputs{device.managed(7 * kBlock), 2, 7, false};
  tag(device, weights);
  tag(device, outputs);
  const auto store = [](const Range& range) {
    for (uint64_t i = 0; i < range.blocks; ++i) range.data[i * kBlock] = 1;
  };
  const auto check = [&](uint64_t weights_now, uint64_t weights_peak, uint64_t outputs_now, uint64_t outputs_peak) {
    const um::driver::DeviceTotals totals = device.totals();
    CHECK_EQ(totals.tag_bytes[0], weights_now * kBlock);
    CHECK_EQ(totals.tag_peak_bytes[0], weights_peak * kBlock);
    CHECK_EQ(totals.tag_bytes[2], outputs_now * kBlock);
    CHECK_EQ(totals.tag_peak_bytes[2], outputs_peak * kBlock);
  };
  check(0, 0, 0, 0);
  store(weights);
  check(3, 3, 0, 0);
  store(outputs);  // 10 blocks for 8 places: the first two weights leave
  check(1, 3, 7, 7);
  store(weights);  // the last one is still there until the second returning one pushes it out; then it returns too
  check(3, 3, 5, 7);
  device.hooks.reset_peaks(device.ordinal);
  check(3, 3, 5, 5);
  CHECK_EQ(device.prefetch(weights.data, 3 * kBlock, true), CUDA_SUCCESS);
  check(0, 3, 5, 5);
  CHECK_EQ(device.totals().device_peak_bytes, 8 * kBlock);
  device.free(outputs.data);
  check(0, 3, 0, 5);
  device.free(weights.data);
}

TEST(what_is_on_the_device_changes_its_tag_and_a_freed_range_loses_it) {
  EmulatedDevice device(8 * kBlock);
  unsigned char* data = device.managed(4 * kBlock);
  std::memset(data, 1, 3 * kBlock);
  CHECK_EQ(device.totals().device_bytes, 3 * kBlock);
  for (const uint64_t bytes : device.totals().tag_bytes) CHECK_EQ(bytes, uint64_t{0});
  tag(device, {data, 5, 4, false});
  CHECK_EQ(device.totals().tag_bytes[5], 3 * kBlock);
  data[3 * kBlock] = 1;
  CHECK_EQ(device.totals().tag_bytes[5], 4 * kBlock);
  tag(device, {data, 1, 4, false});
  CHECK_EQ(device.totals().tag_bytes[5], uint64_t{0});
  CHECK_EQ(device.totals().tag_peak_bytes[1], 4 * kBlock);
  device.free(data);
  CHECK_EQ(device.managed(4 * kBlock), data);  // the same place again
  std::memset(data, 1, 4 * kBlock);
  for (const uint64_t bytes : device.totals().tag_bytes) CHECK_EQ(bytes, uint64_t{0});
  device.free(data);
}

TEST(random_steps_equal_a_walk_over_all_blocks) {
  EmulatedDevice device(12 * kBlock);
  std::mt19937_64 random(3);
  std::vector<Range> ranges;
  Walk walk;
  for (int step = 0; step < 600; ++step) {
    const uint64_t what = random() % 10;
    if (ranges.empty() || (what == 0 && ranges.size() < 8)) {
      const uint64_t blocks = 1 + random() % 5;
      uint64_t plain_blocks = blocks;
      for (const Range& range : ranges) plain_blocks += range.plain ? range.blocks : 0;
      const bool plain = random() % 4 == 0 && plain_blocks <= 8;  // with less left, managed blocks leave all at once
      CUdeviceptr address = 0;
      const CUresult result =
          plain ? device.driver.call.mem_alloc(&address, blocks * kBlock)
                : device.driver.call.mem_alloc_managed(&address, blocks * kBlock, CU_MEM_ATTACH_GLOBAL);
      if (result == CUDA_SUCCESS) {
        const auto with_tag = static_cast<uint32_t>(random() % um::driver::kResidencyTags);
        ranges.push_back({reinterpret_cast<unsigned char*>(address), with_tag, blocks, plain});
        tag(device, ranges.back());
      } else {
        CHECK(plain);  // it had no room; what it pushed out before it gave up is only less
      }
    } else {
      const size_t which = random() % ranges.size();
      const Range range = ranges[which];
      unsigned char* block = range.data + random() % range.blocks * kBlock;
      if (what == 1) {
        device.free(range.data);
        ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(which));
      } else if (what == 2) {
        device.hooks.reset_peaks(device.ordinal);
        walk = {};
      } else if (range.plain || what < 6) {
        *block = static_cast<unsigned char>(step);
      } else if (what == 6) {
        CHECK(*block < 256);
      } else if (what == 7) {
        CHECK_EQ(device.advise(block, kBlock, CU_MEM_ADVISE_SET_READ_MOSTLY), CUDA_SUCCESS);
      } else {
        CHECK_EQ(device.prefetch(block, kBlock, what == 8), CUDA_SUCCESS);
      }
    }
    walk.look(device, ranges);
  }
  for (const Range& range : ranges) device.free(range.data);
  CHECK_EQ(device.totals().device_bytes, uint64_t{0});
  for (const uint64_t bytes : device.totals().tag_bytes) CHECK_EQ(bytes, uint64_t{0});
}

TEST(threads_that_fault_at_once_lose_no_count) {
  EmulatedDevice device(8 * kBlock, 0, UM_COUNTING_RAW);
  constexpr uint32_t kThreads = 3;
  std::vector<Range> ranges;
  for (uint32_t i = 0; i < kThreads; ++i) ranges.push_back({device.managed(6 * kBlock), i, 6, false});
  for (const Range& range : ranges) tag(device, range);
  std::vector<std::thread> threads;
  for (const Range& range : ranges) {
    threads.emplace_back([&range] {
      for (int pass = 0; pass < 20; ++pass) {
        for (uint64_t i = 0; i < range.blocks; ++i) range.data[i * kBlock] = 1;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  const um::driver::DeviceTotals totals = device.totals();
  CHECK_EQ(totals.device_bytes, 8 * kBlock);
  CHECK_EQ(totals.device_peak_bytes, 8 * kBlock);
  for (const Range& range : ranges) {
    CHECK_EQ(totals.tag_bytes[range.tag], blocks_there(device, range) * kBlock);
    CHECK(totals.tag_peak_bytes[range.tag] >= totals.tag_bytes[range.tag]);
    CHECK(totals.tag_peak_bytes[range.tag] <= 6 * kBlock);
  }
  for (const Range& range : ranges) device.free(range.data);
}
