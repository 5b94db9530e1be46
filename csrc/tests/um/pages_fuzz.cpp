// Random operations on few blocks and fewer chunks. After each of them the driver's state must make sense, and data
// that follow the records must be where residency says they are.
#include <map>
#include <random>
#include <string>

#include "check.h"
#include "um/pages_driver.h"
#include "um/pages_touch.h"

using namespace um;
using pages::Block;
using pages::Driver;
using pages::PageMask;
using pages::Record;

namespace {

struct Range {
  std::unique_ptr<pages::Policy> policy;
  std::vector<uint32_t> blocks;
  uint64_t bytes;
};

class Run {
 public:
  Run(uint32_t seed, const pages::Machine& machine) : random_(seed), driver_(machine, {}), machine_(machine) {
    for (int i = 0; i < 5; ++i) ranges_.push_back(make());
  }

  void step() {
    Range& range = ranges_[below(5)];
    const uint32_t kind = below(100);
    const Processor who = below(2) != 0 ? Processor::device : Processor::host;
    if (kind < 5) {
      fight(range);
    } else if (kind < 60) {
      touch(range, below(3) != 0 ? Processor::device : Processor::host);
    } else if (kind < 72) {
      for (uint32_t block : range.blocks) driver_.prefetch(block, who);
    } else if (kind < 90) {
      advise(range, who);
    } else if (kind < 95) {
      for (uint32_t block : range.blocks) driver_.discard(block);
    } else {
      for (uint32_t block : range.blocks) driver_.release(block);
      range = make();
    }
    check();
  }
  const pages::PageCounters& counters() const { return driver_.journal.counters; }

 private:
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }

  Range make() {
    Range range{std::make_unique<pages::Policy>(), {}, 0};
    for (uint32_t left = 1 + below(3 * driver_.pages_per_block); left > 0;) {
      const uint32_t here = std::min(left, driver_.pages_per_block);
      range.blocks.push_back(driver_.add_block(address_, here, range.policy.get()));
      range.bytes += uint64_t{here} * machine_.page_bytes;
      address_ += kBlockBytes;
      left -= here;
    }
    return range;
  }

  void touch(const Range& range, Processor who) {
    pages::Touch touch{random_() % range.bytes, 0, who, below(2) != 0};
    touch.bytes = 1 + random_() % (range.bytes - touch.offset_bytes);
    touch.order = static_cast<pages::TouchOrder>(below(4));
    touch.window_pages = 1 + below(600);
    touch.run_pages = 1 + below(16);
    touch.faults_per_service = below(2) * (1 + below(64));
    pages::Toucher(driver_, range.blocks, touch, random_).run();
  }

  // Few pages, back and forth.
  void fight(const Range& range) {
    pages::Touch touch{random_() % range.bytes, 0, Processor::host, below(4) != 0};
    touch.bytes = std::min<uint64_t>(range.bytes - touch.offset_bytes, 1 + below(20000));
    for (uint32_t round = 0; round < 80; ++round) {
      touch.processor = round % 2 != 0 ? Processor::device : Processor::host;
      pages::Toucher(driver_, range.blocks, touch, random_).run();
    }
  }

  void advise(const Range& range, Processor who) {
    pages::Policy& policy = *range.policy;
    const pages::Location former = policy.preferred;
    switch (below(6)) {
      case 0:
        policy.read_mostly = true;
        for (uint32_t block : range.blocks) driver_.read_mostly_set(block);
        break;
      case 1:
        if (!policy.read_mostly) break;
        policy.read_mostly = false;
        for (uint32_t block : range.blocks) driver_.read_mostly_unset(block);
        break;
      case 2:
      case 3:
        policy.preferred = static_cast<pages::Location>(below(3));
        for (uint32_t block : range.blocks) driver_.preferred_location_changed(block, former);
        break;
      case 4:
        policy.accessed_by[static_cast<int>(who)] = true;
        for (uint32_t block : range.blocks) driver_.accessed_by_set(block, who);
        break;
      default:
        policy.accessed_by[static_cast<int>(who)] = false;
    }
  }

  void check() {
    uint32_t roots = 0, small_pages = 0;
    for (const Range& range : ranges_)
      for (uint32_t index : range.blocks) {
        const Block& block = driver_.at(index);
        check(block);
        roots += block.root != pages::kNone;
        small_pages += block.backed.count();
      }
    const uint32_t split = (small_pages + driver_.pages_per_block - 1) / driver_.pages_per_block;
    CHECK(roots + split <= machine_.device_bytes / kBlockBytes);
    int64_t h2d[kCauses] = {}, d2h[kCauses] = {}, groups = 0;
    for (const Record& record : driver_.journal.records()) {
      CHECK(record.start_ns <= record.end_ns);
      const auto cause = static_cast<int>(record.cause);
      if (record.direction == pages::Direction::h2d) h2d[cause] += static_cast<int64_t>(record.bytes);
      if (record.direction == pages::Direction::d2h) d2h[cause] += static_cast<int64_t>(record.bytes);
      groups += record.direction == pages::Direction::none;
    }
    CHECK_EQ(groups, counters().shared.fault_groups);
    for (int cause = 0; cause < kCauses; ++cause) {
      CHECK_EQ(h2d[cause], counters().shared.bytes_h2d[cause]);
      CHECK_EQ(d2h[cause], counters().shared.bytes_d2h[cause]);
    }
  }

  void check(const Block& block) const {
    const PageMask& host = block.resident[0];
    const PageMask& device = block.resident[1];
    const PageMask duplicates = host & device;
    CHECK((block.anywhere() - block.valid).empty());
    CHECK(block.policy->read_mostly || duplicates.empty());
    for (int by : {0, 1}) {
      CHECK((block.write[by] - block.read[by]).empty());
      CHECK((block.read[by] - block.anywhere()).empty());
      CHECK((block.write[by] & duplicates).empty());
      CHECK((block.write[by] & block.discarded).empty());
    }
    if (!machine_.coherent) CHECK((block.read[0] - host).empty());
    if (block.policy->read_mostly) CHECK((block.write[0] & block.write[1]).empty());
    if (block.pages == driver_.pages_per_block) {
      CHECK(block.root != pages::kNone || device.empty());
      CHECK(block.root == pages::kNone || !device.empty() || !block.discarded.empty());
    } else {
      CHECK((device - block.backed).empty());
    }
  }

  std::mt19937_64 random_;
  Driver driver_;
  const pages::Machine machine_;
  std::vector<Range> ranges_;
  uint64_t address_ = kBlockBytes;
};

pages::PageCounters run(uint32_t seed, const pages::Machine& machine, int steps) {
  Run one(seed, machine);
  for (int step = 0; step < steps; ++step) {
    try {
      one.step();
    } catch (const check::Failure& failure) {
      throw check::Failure("seed " + std::to_string(seed) + ", step " + std::to_string(step) + ": " + failure.what());
    }
  }
  return one.counters();
}

void run_all(uint32_t page_bytes, bool coherent) {
  int64_t evictions = 0, dropped = 0, collapses = 0, remote = 0, throttles = 0, pinned = 0;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    const pages::PageCounters counters = run(seed, {(1 + seed % 4) * kBlockBytes, page_bytes, coherent}, 300);
    evictions += counters.shared.evictions;
    dropped += counters.shared.evictions_dropped;
    collapses += counters.shared.collapses;
    remote += counters.remote_bytes;
    throttles += counters.throttles;
    pinned += counters.pinned_pages;
  }
  CHECK(evictions > 100 && dropped > 20 && collapses > 20 && remote > 0);
  CHECK(pinned > 20 && (coherent || throttles > 20));  // coherent machines pin without throttling first
}

}  // namespace

TEST(behind_pcie) { run_all(4096, false); }
TEST(coherent) { run_all(4096, true); }
TEST(coherent_with_64_kib_pages) { run_all(65536, true); }
TEST(behind_pcie_with_64_kib_pages) { run_all(65536, false); }
