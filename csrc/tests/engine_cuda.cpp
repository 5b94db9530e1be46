// What the core does on CUDA, seen through a driver that logs its calls: contexts, both forms of advice and prefetch,
// devices without concurrent managed access, addresses without alignment, the budget where no fault can be seen.
#include "engine_fake_driver.h"
#include "engine_fixture.h"

using test::advised;
using test::kMiB;
using test::kPage;

namespace {

struct Opened {
  explicit Opened(fake::Forms forms = fake::Forms::by_location, bool concurrent = true)
      : device(fake::open(forms, concurrent)) {}
  ~Opened() {
    for (void* each : live) um_free(each);
    um_device_close(device);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  operator um_device*() const { return device; }

  unsigned char* allocate(uint64_t bytes, const um_placement& placement) {
    void* address = nullptr;
    CHECK_OK(um_allocate(device, bytes, &placement, nullptr, &address));
    live.push_back(address);
    return static_cast<unsigned char*>(address);
  }

  um_device* device;
  std::vector<void*> live;
};

}  // namespace

TEST(the_callers_context_is_as_it_was_before) {
  const auto others = reinterpret_cast<fake::CUcontext>(uintptr_t{0x2000});
  for (const fake::CUcontext before : {static_cast<fake::CUcontext>(nullptr), others, fake::kContext}) {
    fake::current = before;
    {
      Opened device;
      CHECK_OK(um_budget_set(device, 2 * kPage));
      unsigned char* data = device.allocate(kPage, advised(UM_ADVICE_PREFETCH));
      CHECK(fake::current == before);
      CHECK_OK(um_copy_from_host(data, "x", 1));
      CHECK_OK(um_prefetch(data, 1, 1, nullptr));
      CHECK(fake::current == before);
    }
    CHECK(fake::current == before);
    CHECK(fake::state.ranges.empty());
  }
  fake::current = nullptr;
}

TEST(advice_is_given_once_an_arena_in_the_form_that_the_driver_has) {
  for (const auto& [forms, letter] :
       {std::pair{fake::Forms::by_location, 'l'}, std::pair{fake::Forms::by_device, 'd'}}) {
    Opened device(forms);
    for (int i = 0; i < 10; ++i) {
      device.allocate(1000, advised(UM_ADVICE_READ_MOSTLY));
      device.allocate(1000, advised(UM_ADVICE_ACCESSED_BY));
      device.allocate(1000, advised(UM_ADVICE_PREFERRED_LOCATION));
      device.allocate(1000, advised(UM_ADVICE_NONE));
    }
    CHECK((fake::state.advice == std::vector<fake::CUmem_advise>{fake::CU_MEM_ADVISE_SET_READ_MOSTLY,
                                                                 fake::CU_MEM_ADVISE_SET_ACCESSED_BY,
                                                                 fake::CU_MEM_ADVISE_SET_PREFERRED_LOCATION}));
    unsigned char* data = device.allocate(3 * kMiB, advised(UM_ADVICE_PREFETCH));
    CHECK_EQ(fake::state.prefetches.size(), size_t{1});
    CHECK_EQ(fake::state.prefetches[0].address, reinterpret_cast<uint64_t>(data));
    CHECK_EQ(fake::state.prefetches[0].bytes, 3 * kMiB);
    CHECK(!fake::state.prefetches[0].to_host);
    CHECK_EQ(fake::state.forms, std::string(4, letter));
  }
}

TEST(without_concurrent_access_advice_is_skipped_and_requests_say_why) {
  Opened device(fake::Forms::by_location, false);
  unsigned char* data = device.allocate(1000, advised(UM_ADVICE_READ_MOSTLY));
  device.allocate(1000, advised(UM_ADVICE_PREFETCH));
  CHECK_EQ(fake::state.forms, std::string());
  CHECK_FAILS(UM_UNSUPPORTED, um_prefetch(data, 1000, 1, nullptr));
  CHECK(std::strstr(um_last_error(), "attribute 89") != nullptr);
  CHECK_FAILS(UM_UNSUPPORTED, um_budget_set(device, 4 * kPage));
}

TEST(arenas_are_aligned_whatever_the_driver_gives) {
  fake::state.offset_bytes = 512;
  {
    Opened device;
    CHECK_EQ(reinterpret_cast<uint64_t>(device.allocate(3 * kPage, test::kIntermediate)) % kPage, uint64_t{0});
    CHECK_EQ(reinterpret_cast<uint64_t>(device.allocate(100 * kMiB, test::kParameter)) % kPage, uint64_t{0});
    CHECK_EQ(fake::state.ranges.size(), size_t{2});
  }
  fake::state.offset_bytes = 0;
  CHECK(fake::state.ranges.empty());
}

TEST(plain_memory_grows_by_what_is_needed_when_more_is_not_there) {
  fake::state.limit_bytes = 20 * kMiB;
  {
    Opened device;
    for (int i = 0; i < 5; ++i) device.allocate(4 * kMiB, test::kPlain);
    CHECK_EQ(fake::state.used_bytes, 20 * kMiB);
    void* address = nullptr;
    CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device, 1, &test::kPlain, nullptr, &address));
    CHECK(std::strstr(um_last_error(), "fake device") != nullptr);
  }
  fake::state.limit_bytes = ~uint64_t{0};
}

TEST(a_budget_moves_what_its_own_model_evicts) {
  Opened device;
  unsigned char* pages = device.allocate(8 * kPage, test::kIntermediate);
  const auto page = [&](int i) { return reinterpret_cast<uint64_t>(pages) + static_cast<uint64_t>(i) * kPage; };
  CHECK_OK(um_budget_set(device, 4 * kPage));
  // All that is live may be on the device, so the older half is sent away, neighbours in one call.
  CHECK_EQ(fake::state.prefetches.size(), size_t{1});
  CHECK_EQ(fake::state.prefetches[0].address, page(0));
  CHECK_EQ(fake::state.prefetches[0].bytes, 4 * kPage);
  CHECK(fake::state.prefetches[0].to_host);
  fake::state.prefetches.clear();
  const um_access access = test::write(pages, kPage);
  CHECK_OK(um_op_begin(device, 1, 1, 1, 0, &access, 1));
  CHECK_EQ(fake::state.prefetches.size(), size_t{1});
  CHECK_EQ(fake::state.prefetches[0].address, page(4));
  um_op_end(device, nullptr, 0);
  um_memory_stats stats{};
  CHECK_OK(um_memory_read(device, &stats));
  CHECK_EQ(stats.resident_bytes, 4 * kPage);
}

TEST(read_mostly_memory_is_moved_and_not_copied_by_a_budget) {
  Opened device;
  unsigned char* pages = device.allocate(8 * kPage, advised(UM_ADVICE_READ_MOSTLY));
  fake::state.advice.clear();
  CHECK_OK(um_budget_set(device, 4 * kPage));
  CHECK((fake::state.advice ==
         std::vector<fake::CUmem_advise>{fake::CU_MEM_ADVISE_UNSET_READ_MOSTLY, fake::CU_MEM_ADVISE_SET_READ_MOSTLY}));
  CHECK_EQ(fake::state.prefetches.size(), size_t{1});
  CHECK_EQ(fake::state.prefetches[0].address, reinterpret_cast<uint64_t>(pages));
}

TEST(counters_that_nobody_could_observe_are_unknown) {
  Opened device;
  CHECK_OK(um_op_begin(device, 1, 1, 1, 0, nullptr, 0));
  um_op_end(device, nullptr, 0);
  um_counters counters{};
  CHECK_OK(um_counters_read(device, &counters));
  CHECK_EQ(counters.op_count, int64_t{1});
  CHECK_EQ(counters.oversized_ops, int64_t{0});
  for (const int64_t value :
       {counters.fault_groups, counters.unordered_faults, counters.first_touches, counters.bytes_h2d[0],
        counters.bytes_d2h[3], counters.evictions, counters.collapses, counters.remote_accesses}) {
    CHECK_EQ(value, int64_t{UM_UNKNOWN});
  }
  CHECK_FAILS(UM_UNSUPPORTED, um_emulated_fail(device, nullptr, 1));
  CHECK_EQ(um_emulated_calls(device, nullptr), uint64_t{0});
  CHECK_FAILS(UM_UNSUPPORTED, um_export(device.allocate(10, test::kIntermediate)));
}
