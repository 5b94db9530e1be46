// The exact mode by rules and by published numbers: sizes of transfers, services, evictions, advice, each worked by
// hand or read off a profile of a real machine.
#include "um/pages.h"

#include <algorithm>
#include <string>

#include "check.h"

using namespace um;
using pages::Direction;
using pages::Record;
using pages::Touch;
using pages::TouchOrder;

namespace {

constexpr Processor kHost = Processor::host, kDevice = Processor::device;
constexpr uint64_t kMiB = uint64_t{1} << 20, kPage = 4096;

struct Bench {
  explicit Bench(uint64_t device_mib, bool coherent = false, uint32_t page_bytes = 4096)
      : model({device_mib * kMiB, page_bytes, coherent}, {}) {}

  void touch(PageModel::Id id, Processor who, uint64_t bytes, bool write = false, uint64_t offset = 0) {
    model.touch(id, {offset, bytes, who, write});
  }
  int64_t h2d(Cause cause) { return model.counters().shared.bytes_h2d[static_cast<int>(cause)]; }
  int64_t d2h(Cause cause) { return model.counters().shared.bytes_d2h[static_cast<int>(cause)]; }
  int64_t h2d() { return h2d(Cause::user) + h2d(Cause::coherence) + h2d(Cause::speculative); }
  int64_t groups() { return model.counters().shared.fault_groups; }
  int64_t host_groups() { return model.counters().shared.host_fault_groups; }
  std::vector<Record> transfers(Direction direction = Direction::h2d) {
    std::vector<Record> some;
    for (const Record& record : model.records())
      if (record.direction == direction) some.push_back(record);
    return some;
  }
  std::string sizes_kib(Direction direction = Direction::h2d) {
    std::string text;
    for (const Record& record : transfers(direction)) text += std::to_string(record.bytes / 1024) + " ";
    return text;
  }

  PageModel model;
};

// Host-resident data of some blocks, then one touch of the device.
struct Sweep {
  double groups, transfers, batches;  // per block
};
Sweep sweep(uint32_t blocks, Touch touch) {
  Bench bench(blocks * 2);
  const auto id = bench.model.allocate(blocks * 2 * kMiB);
  bench.model.prefetch(id, kHost);
  touch.bytes = blocks * 2 * kMiB;
  touch.processor = kDevice;
  bench.model.touch(id, touch);
  const double n = blocks;
  CHECK_EQ(bench.h2d(), static_cast<int64_t>(touch.bytes));
  return {static_cast<double>(bench.groups()) / n, static_cast<double>(bench.transfers().size()) / n,
          static_cast<double>(bench.model.counters().batches) / n};
}
Touch in_windows(uint32_t window, TouchOrder order = TouchOrder::serial, uint32_t run = 1, uint32_t faults = 0) {
  return {0, 0, kDevice, false, order, window, run, faults};
}
bool near(double value, double expected, double share) { return std::abs(value - expected) <= share * expected; }

}  // namespace

// ---- the density prefetcher -----------------------------------------------------------------------------------------

TEST(serial_sweep_of_one_block) {
  Bench bench(4);
  const auto id = bench.model.allocate(2 * kMiB);
  bench.touch(id, kHost, 2 * kMiB, true);
  CHECK_EQ(bench.host_groups(), 6);
  bench.touch(id, kDevice, 2 * kMiB);
  CHECK_EQ(bench.sizes_kib(), "4 60 4 60 4 124 4 252 4 508 4 1020 ");
  CHECK_EQ(bench.groups(), 6);
  const std::vector<Record> records = bench.transfers();
  for (size_t i = 0; i < records.size(); ++i)
    CHECK(records[i].cause == (i % 2 == 0 ? Cause::coherence : Cause::speculative));
  CHECK_EQ(bench.h2d(Cause::coherence), 6 * 4096);
}

TEST(backward_sweep_of_one_block) {
  const Sweep backward = sweep(16, in_windows(1, TouchOrder::backward));
  CHECK_EQ(backward.groups, 6.0);
  CHECK_EQ(backward.transfers, 12.0);
}

TEST(v1_serial_sweep_of_384_mib) {
  Bench bench(1024);
  const auto id = bench.model.allocate(384 * kMiB);
  bench.touch(id, kHost, 384 * kMiB, true);
  bench.touch(id, kDevice, 384 * kMiB);
  const std::vector<Record> records = bench.transfers();
  CHECK_EQ(records.size(), 2304u);
  uint64_t bytes = 0, least = ~uint64_t{0}, most = 0;
  for (const Record& record : records) {
    bytes += record.bytes;
    least = std::min(least, record.bytes);
    most = std::max(most, record.bytes);
  }
  CHECK_EQ(bytes, 393216u * 1024u);
  CHECK_EQ(least, 4u * 1024u);
  CHECK_EQ(most, 1020u * 1024u);
}

TEST(v3_first_touch_of_128_mib_in_narrow_windows) {
  for (uint32_t window : {1u, 4u, 16u}) {
    Bench bench(1024);
    const auto id = bench.model.allocate(128 * kMiB);
    bench.model.touch(id, {0, 128 * kMiB, kDevice, true, TouchOrder::serial, window});
    CHECK_EQ(bench.groups(), 384);
    CHECK_EQ(bench.model.counters().shared.first_touches, 384);
    CHECK_EQ(bench.transfers().size(), 0u);
    CHECK_EQ(bench.model.counters().zeroed_bytes, static_cast<int64_t>(128 * kMiB));
  }
}

TEST(windows_of_missing_pages) {
  const struct {
    uint32_t window;
    double groups, transfers;
  } rows[] = {{16, 6, 10}, {32, 5, 8}, {64, 4, 6}, {128, 3, 4}, {256, 2, 2}};
  for (const auto& row : rows) {
    const Sweep result = sweep(16, in_windows(row.window));
    CHECK_EQ(result.groups, row.groups);
    CHECK_EQ(result.transfers, row.transfers);
  }
}

TEST(serial_random_order) {
  const Sweep result = sweep(400, in_windows(1, TouchOrder::random));
  CHECK(near(result.groups, 13.7, 0.03));
  CHECK(near(result.transfers, 45, 0.05));
}

TEST(windows_wider_than_a_block_in_random_order) {
  const struct {
    uint32_t window;
    double batches, transfers;
  } rows[] = {{512, 1, 255}, {1024, 0.5, 194}, {2048, 0.25, 110}};
  for (const auto& row : rows) {
    const Sweep result = sweep(200, in_windows(row.window, TouchOrder::random));
    CHECK(near(result.groups, 1, 0.02));
    CHECK(near(result.batches, row.batches, 0.02));
    CHECK(near(result.transfers, row.transfers, 0.03));
  }
}

TEST(parallel_kernels) {
  const struct {
    uint32_t window, run, faults;
    double groups, transfers;
  } rows[] = {{256, 1, 4, 4.0, 41},  {256, 1, 8, 2.9, 52},  {256, 1, 16, 2.0, 63}, {256, 8, 64, 2.8, 34},
              {256, 8, 96, 2.0, 33}, {384, 8, 64, 2.8, 37}, {384, 8, 128, 2.0, 32}};
  for (const auto& row : rows) {
    const Sweep result = sweep(400, in_windows(row.window, TouchOrder::parallel, row.run, row.faults));
    CHECK(near(result.groups, row.groups, 0.03));
    CHECK(near(result.transfers, row.transfers, 0.05));
  }
}
