// The budget: managed memory stays below it before every op, data stay right, and what leaves is what a device of that
// size would have evicted: the pages serviced longest ago, kept by the test as a plain list.
#include <algorithm>
#include <deque>
#include <random>
#include <thread>

#include "engine_fixture.h"

using test::Device;
using test::kMiB;
using test::kPage;
using test::kParameter;
using test::read;
using test::write;

namespace {

constexpr uint64_t kBudget = 4 * kPage;

uint64_t resident_pages(const Device& device) { return device.memory().resident_bytes / kPage; }

}  // namespace

TEST(a_budget_sends_the_longest_serviced_pages_to_the_host) {
  Device device(32 * kPage);
  std::vector<unsigned char*> pages;
  for (int i = 0; i < 10; ++i) pages.push_back(device.allocate(kPage));
  CHECK_OK(um_budget_set(device, kBudget));
  std::deque<size_t> resident;  // by service, oldest first
  std::mt19937_64 random(5);
  for (int op = 0; op < 300; ++op) {
    const size_t i = random() % pages.size();
    if (std::find(resident.begin(), resident.end(), i) == resident.end()) {
      if (resident.size() == 4) resident.pop_front();
      resident.push_back(i);
    }
    device.op({write(pages[i], kPage)}, [&] { std::memset(pages[i], op % 251, kPage); });
    CHECK_EQ(resident_pages(device), resident.size());
    for (size_t page = 0; page < pages.size(); ++page) {
      const bool expected = std::find(resident.begin(), resident.end(), page) != resident.end();
      if (!expected) continue;
      const int64_t before = device.counters().fault_groups;
      CHECK_EQ(pages[page][1], pages[page][0]);  // no fault: it is there
      CHECK_EQ(device.counters().fault_groups, before);
    }
  }
  CHECK_EQ(device.counters().evictions, int64_t{0});  // the device itself was never full
  CHECK_EQ(device.counters().bytes_d2h[UM_CAUSE_EVICTION], int64_t{0});
  CHECK(device.counters().bytes_d2h[UM_CAUSE_USER] > 0);
  CHECK_EQ(device.memory().resident_peak_bytes, kBudget);
}

TEST(a_budget_keeps_every_advice_below_it_and_the_data_right) {
  for (uint32_t advice = 0; advice < UM_ADVICE_COUNT; ++advice) {
    Device device(32 * kPage);
    CHECK_OK(um_budget_set(device, kBudget));
    std::vector<unsigned char*> weights;
    for (int i = 0; i < 9; ++i) {
      weights.push_back(device.allocate(kPage, test::advised(static_cast<um_advice>(advice))));
      const std::vector<unsigned char> value(kPage, static_cast<unsigned char>(i + 1));
      CHECK_OK(um_copy_from_host(weights.back(), value.data(), kPage));
      CHECK(resident_pages(device) <= 4);
    }
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < weights.size(); ++i) {
        device.op({read(weights[i], kPage)}, [&] {
          unsigned char* output = device.allocate(kPage);
          std::memcpy(output, weights[i], kPage);
          CHECK(test::holds(output, static_cast<unsigned char>(i + 1), kPage));
          device.free(output);
        });
        CHECK(resident_pages(device) <= 4);
      }
    }
    CHECK_EQ(device.counters().unordered_faults, int64_t{0});
  }
}

TEST(a_budget_holds_at_once_for_what_is_there_already) {
  Device device(32 * kPage);
  unsigned char* data = device.allocate(10 * kPage);
  std::memset(data, 3, 10 * kPage);
  CHECK_EQ(resident_pages(device), uint64_t{10});
  CHECK_OK(um_budget_set(device, kBudget));
  CHECK_EQ(resident_pages(device), uint64_t{4});
  CHECK(test::holds(data, 3, 10 * kPage));
  CHECK_OK(um_budget_set(device, 0));
  device.op({read(data, 10 * kPage)});
  CHECK_EQ(resident_pages(device), uint64_t{10});
}

TEST(an_op_above_the_budget_runs_and_is_reported) {
  Device device(32 * kPage);
  CHECK_OK(um_budget_set(device, kBudget));
  unsigned char* data = device.allocate(6 * kPage);
  device.op({write(data, 6 * kPage)}, [&] { std::memset(data, 8, 6 * kPage); });
  CHECK(test::holds(data, 8, 6 * kPage));
  CHECK_EQ(device.counters().oversized_ops, int64_t{1});
}

// An operator on lists, as GPUs run it: all results are allocated before the kernel begins.
TEST(an_op_of_many_results_moves_each_page_once) {
  constexpr uint64_t kInputs = 120;
  Device device(300 * kPage);
  std::vector<unsigned char*> inputs, outputs;
  for (uint64_t i = 0; i < kInputs; ++i) inputs.push_back(device.allocate(kPage));
  CHECK_OK(um_budget_set(device, kInputs * 4 / 5 * kPage));
  std::vector<um_access> accesses;
  for (unsigned char* input : inputs) {
    device.op({write(input, kPage)}, [&] { std::memset(input, 3, kPage); });
    accesses.push_back(read(input, kPage));
  }
  const uint64_t before = um_emulated_calls(device, "cuMemPrefetchAsync");
  device.op(accesses, [&] {
    for (uint64_t i = 0; i < kInputs; ++i) outputs.push_back(device.allocate(kPage));
    for (uint64_t i = 0; i < kInputs; ++i) std::memcpy(outputs[i], inputs[i], kPage);
  });
  CHECK_EQ(um_emulated_calls(device, "cuMemPrefetchAsync"), before);  // nothing that the op needs leaves under it
  CHECK_EQ(device.counters().oversized_ops, int64_t{1});
  unsigned char* other = device.allocate(kPage);
  device.op({write(other, kPage)});
  CHECK(um_emulated_calls(device, "cuMemPrefetchAsync") - before <= 2 * kInputs);
  CHECK_EQ(resident_pages(device), kInputs * 4 / 5);
  for (const unsigned char* output : outputs) CHECK(test::holds(output, 3, kPage));
}

TEST(what_an_op_allocates_sends_nothing_of_its_own_away) {
  for (uint64_t made = 1; made <= 6; ++made) {
    Device device(64 * kPage);
    CHECK_OK(um_budget_set(device, 8 * kPage));
    unsigned char* operands = device.allocate(2 * kPage);
    unsigned char* others = device.allocate(6 * kPage);
    device.op({write(operands, 2 * kPage)});  // the oldest
    device.op({write(others, 6 * kPage)});
    const int64_t groups = device.counters().fault_groups;
    device.op({read(operands, 2 * kPage)}, [&] {
      for (uint64_t i = 0; i < made; ++i) device.allocate(kPage)[0] = 1;
      CHECK_EQ(operands[0] + operands[kPage], 0);
    });
    CHECK_EQ(device.counters().fault_groups - groups, static_cast<int64_t>(made));
    CHECK_EQ(resident_pages(device), uint64_t{8});
    CHECK_EQ(device.counters().bytes_d2h[UM_CAUSE_USER], static_cast<int64_t>(made * kPage));
  }
}

TEST(a_budget_leaves_exports_alone) {
  Device device(32 * kPage);
  unsigned char* exported = device.allocate(2 * kPage);
  CHECK_OK(um_export(exported, nullptr));
  CHECK_OK(um_budget_set(device, kBudget));
  unsigned char* late = device.allocate(kPage);
  CHECK_OK(um_export(late, nullptr));
  unsigned char* others = device.allocate(6 * kPage);
  for (uint64_t page = 0; page < 6; ++page) device.op({write(others + page * kPage, kPage)});
  const int64_t before = device.counters().fault_groups;
  std::memset(exported, 1, 2 * kPage);
  std::memset(late, 1, kPage);
  CHECK_EQ(device.counters().fault_groups, before);
  CHECK_EQ(resident_pages(device), uint64_t{4});
  unsigned char* huge = device.allocate(8 * kPage);  // more than the budget, less than the device
  CHECK_OK(um_export(huge, nullptr));
  for (uint64_t page = 0; page < 6; ++page) device.op({write(others + page * kPage, kPage)});
  const int64_t after = device.counters().fault_groups;
  std::memset(huge, 1, 8 * kPage);
  CHECK_EQ(device.counters().fault_groups, after);
}

TEST(what_is_copied_or_prefetched_beyond_the_budget_leaves_before_the_next_op) {
  Device device(32 * kPage);
  CHECK_OK(um_budget_set(device, kBudget));
  unsigned char* data = device.allocate(12 * kPage);
  unsigned char* other = device.allocate(kPage);
  const std::vector<unsigned char> value(12 * kPage, 7);
  CHECK_OK(um_copy_from_host(data, value.data(), value.size()));
  device.op({write(other, kPage)});
  CHECK_EQ(resident_pages(device), uint64_t{4});
  CHECK_OK(um_prefetch(data, 12 * kPage, 0, nullptr));
  CHECK_OK(um_copy_from_host(other, value.data(), 100));
  CHECK_EQ(resident_pages(device), uint64_t{4});
  unsigned char* ahead = device.allocate(12 * kPage, test::advised(UM_ADVICE_PREFETCH));
  device.op({read(other, kPage)});
  CHECK_EQ(resident_pages(device), uint64_t{4});
  CHECK(test::holds(data, 7, 12 * kPage));
  CHECK(test::holds(ahead, 0, 12 * kPage));
}

// The range's first page was serviced longest ago, so it is the next victim when its second page is brought.
TEST(a_copy_does_not_evict_its_own_pages) {
  Device device(32 * kPage);
  CHECK_OK(um_budget_set(device, kBudget));
  unsigned char* data = device.allocate(8 * kPage);
  for (const uint64_t page : {0, 4, 5, 6}) device.op({write(data + page * kPage, kPage)});
  CHECK_EQ(resident_pages(device), uint64_t{4});
  const std::vector<unsigned char> value(2 * kPage, 7);
  CHECK_OK(um_copy_from_host(data, value.data(), value.size()));
  CHECK_EQ(resident_pages(device), uint64_t{4});
  CHECK_EQ(device.memory().resident_peak_bytes, kBudget);
  CHECK(test::holds(data, 7, 2 * kPage));
}

TEST(memory_that_is_first_written_outside_of_ops_stays_within_the_budget) {
  for (const um_counting counting : {UM_COUNTING_ORDERED, UM_COUNTING_RAW}) {
    Device device(32 * kPage, counting);
    CHECK_OK(um_budget_set(device, kBudget));
    unsigned char* data = device.allocate(12 * kPage);
    for (uint64_t page = 0; page < 12; ++page) std::memset(data + page * kPage, static_cast<int>(page + 1), kPage);
    CHECK_EQ(resident_pages(device), uint64_t{4});
    unsigned char* other = device.allocate(kPage);
    device.op({write(other, kPage)}, [&] { std::memset(other, 99, kPage); });
    for (uint64_t page = 0; page < 12; ++page)
      CHECK(test::holds(data + page * kPage, static_cast<unsigned char>(page + 1), kPage));  // read again
    CHECK(test::holds(other, 99, kPage));
    CHECK_EQ(device.memory().resident_peak_bytes, kBudget);
  }
}

// What the other thread touches may exceed the budget only by two pages, where the op alone fills it.
TEST(memory_that_another_thread_writes_beside_an_op_takes_no_page_from_the_op) {
  for (const uint64_t used_pages : {2, 4}) {
    Device device(32 * kPage);
    CHECK_OK(um_budget_set(device, kBudget));
    unsigned char* used = device.allocate(used_pages * kPage);
    unsigned char* beside = device.allocate(8 * kPage);
    device.op({write(used, used_pages * kPage)}, [&] {
      std::thread([&] { std::memset(beside, 5, 8 * kPage); }).join();
      CHECK_EQ(resident_pages(device), used_pages + 2);
      const int64_t before = device.counters().fault_groups;
      std::memset(used, 7, used_pages * kPage);
      CHECK_EQ(device.counters().fault_groups, before);
    });
    CHECK(test::holds(beside, 5, 8 * kPage));
    CHECK(test::holds(used, 7, used_pages * kPage));
    CHECK_EQ(device.memory().resident_peak_bytes, (used_pages + 2) * kPage);
  }
}

TEST(an_export_that_fails_takes_nothing_of_the_budget) {
  Device device(32 * kPage);
  unsigned char* wanted = device.allocate(8 * kPage);
  unsigned char* others = device.allocate(8 * kPage);
  CHECK_OK(um_budget_set(device, kBudget));
  device.op({write(others, 4 * kPage)});
  CHECK_OK(um_emulated_fail(device, "cuMemPrefetchAsync", 1));
  CHECK_FAILS(UM_DRIVER_ERROR, um_export(wanted, nullptr));
  CHECK_FAILS(UM_BAD_STATE, um_export_release(wanted));
  for (uint64_t page = 0; page < 8; ++page) device.op({write(others + page * kPage, kPage)});
  CHECK_EQ(resident_pages(device), uint64_t{4});
}

TEST(a_budget_that_exports_fill_holds_for_all_else) {
  Device device(32 * kPage);
  CHECK_OK(um_budget_set(device, kBudget));
  CHECK_OK(um_export(device.allocate(4 * kPage), nullptr));
  unsigned char* others = device.allocate(8 * kPage);
  for (int sweep = 0; sweep < 2; ++sweep) {
    for (uint64_t page = 0; page < 8; ++page) {
      device.op({write(others + page * kPage, kPage)}, [&] { std::memset(others + page * kPage, 5, kPage); });
      CHECK_EQ(resident_pages(device), uint64_t{5});  // the exported ones, and what the op cannot do without
    }
  }
  CHECK(test::holds(others, 5, 8 * kPage));
}

TEST(a_budget_follows_arenas_that_come_and_go) {
  Device device(64 * kPage);
  CHECK_OK(um_budget_set(device, kBudget));
  std::mt19937_64 random(9);
  for (int round = 0; round < 40; ++round) {
    std::vector<unsigned char*> blocks;
    for (int i = 0; i < 4; ++i) {
      const uint64_t pages = 1 + random() % 3;
      blocks.push_back(device.allocate((32 + pages) * kPage));  // an arena of its own
      device.op({write(blocks.back(), pages * kPage)}, [&] { blocks.back()[0] = 1; });
      CHECK(resident_pages(device) <= 4);
    }
    for (unsigned char* block : blocks) device.free(block);
  }
}

TEST(budgets_that_make_no_sense_are_refused) {
  Device device(16 * kPage);
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_budget_set(device, 1));
  CHECK_OK(um_budget_set(device, uint64_t{1} << 60));  // above the device: no limit
  unsigned char* data = device.allocate(16 * kPage);
  device.op({write(data, 16 * kPage)}, [&] { std::memset(data, 1, 16 * kPage); });
  CHECK_EQ(device.counters().oversized_ops, int64_t{0});
  CHECK_EQ(resident_pages(device), uint64_t{16});
}

TEST(pages_of_freed_allocations_count_against_a_new_budget) {
  Device device(32 * kPage);
  unsigned char* freed = device.allocate(6 * kPage);
  unsigned char* kept = device.allocate(4 * kPage);  // of the same arena
  std::memset(freed, 1, 6 * kPage);
  std::memset(kept, 3, 4 * kPage);
  device.free(freed);
  CHECK_EQ(resident_pages(device), uint64_t{10});
  CHECK_OK(um_budget_set(device, kBudget));
  CHECK_EQ(resident_pages(device), uint64_t{4});
  const um_counters before = device.counters();
  device.op({read(kept, 4 * kPage)});
  CHECK_EQ(device.counters().fault_groups, before.fault_groups);  // the freed ones have left first
  CHECK(test::holds(kept, 3, 4 * kPage));
}
