// Statistics against closed forms: every figure can be worked out by hand from what was allocated and touched.
#include "engine_fixture.h"

using test::Device;
using test::kInput;
using test::kIntermediate;
using test::kMiB;
using test::kPage;
using test::kParameter;
using test::kPlain;

TEST(requested_bytes_and_peaks_by_label) {
  Device device(64 * kMiB);
  unsigned char* weight = device.allocate(1000, kParameter);
  unsigned char* batch = device.allocate(200, kInput);
  unsigned char* activation = device.allocate(30, kIntermediate);
  device.free(activation);
  unsigned char* moment = device.allocate(1000, kIntermediate);
  CHECK_OK(um_allocation_label(moment, UM_ROLE_OPTIMIZER_STATE, 0));
  um_memory_stats now = device.memory();
  CHECK_EQ(now.requested_bytes, uint64_t{2200});
  CHECK_EQ(now.requested_peak_bytes, uint64_t{2200});
  CHECK_EQ(now.requested_by_role[UM_ROLE_PARAMETER], uint64_t{1000});
  CHECK_EQ(now.requested_by_role[UM_ROLE_INPUT], uint64_t{200});
  CHECK_EQ(now.requested_by_role[UM_ROLE_INTERMEDIATE], uint64_t{0});
  CHECK_EQ(now.requested_peak_by_role[UM_ROLE_INTERMEDIATE], uint64_t{1000});
  CHECK_EQ(now.requested_by_role[UM_ROLE_OPTIMIZER_STATE], uint64_t{1000});
  CHECK_EQ(now.allocation_count, uint64_t{4});
  CHECK_EQ(now.free_count, uint64_t{1});
  CHECK_EQ(now.live_allocations, uint64_t{3});
  device.free(weight);
  CHECK_EQ(device.memory().requested_peak_bytes, uint64_t{2200});
  um_memory_reset_peaks(device);
  CHECK_EQ(device.memory().requested_peak_bytes, uint64_t{1200});
  device.free(batch);
  device.free(moment);
  now = device.memory();
  CHECK_EQ(now.requested_bytes, uint64_t{0});
  CHECK_EQ(now.requested_peak_by_role[UM_ROLE_OPTIMIZER_STATE], uint64_t{1000});
}

TEST(history_counts_what_is_gone) {
  Device device(64 * kMiB);
  const auto history = [&] {
    um_memory_history out{};
    CHECK_OK(um_memory_history_read(device, &out));
    return out;
  };
  unsigned char* first = device.allocate(1000, kParameter);
  device.free(device.allocate(200, kInput));
  device.free(device.allocate(30, kIntermediate));
  CHECK_EQ(history().requested_bytes, uint64_t{1230});
  CHECK_EQ(history().live_allocations_peak, uint64_t{2});
  um_memory_reset_peaks(device);
  CHECK_EQ(history().live_allocations_peak, uint64_t{1});
  CHECK_EQ(history().requested_bytes, uint64_t{1230});
  void* none = nullptr;
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device, 128 * kMiB, &kPlain, nullptr, &none));
  CHECK_EQ(history().failure_count, uint64_t{1});
  // A wish for device memory that goes to managed memory has not failed.
  const um_placement wish{UM_MEMORY_PREFER_DEVICE, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
  CHECK_OK(um_allocate(device, 128 * kMiB, &wish, nullptr, &none));
  CHECK_EQ(history().failure_count, uint64_t{1});
  CHECK_EQ(um_free(none), 1);
  device.free(first);
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_memory_history_read(device, nullptr));
}

TEST(residency_follows_what_was_touched) {
  Device device(8 * kPage);
  unsigned char* weight = device.allocate(3 * kPage, kParameter);
  unsigned char* batch = device.allocate(2 * kPage, kInput);
  um_memory_stats now = device.memory();
  CHECK_EQ(now.resident_bytes, uint64_t{0});
  CHECK_EQ(now.reserved_bytes, 2 * 64 * kMiB);
  weight[0] = 1;
  weight[2 * kPage] = 1;
  batch[kPage] = 1;
  now = device.memory();
  CHECK_EQ(now.resident_bytes, 3 * kPage);
  CHECK_EQ(now.resident_by_role[UM_ROLE_PARAMETER], 2 * kPage);
  CHECK_EQ(now.resident_by_role[UM_ROLE_INPUT], kPage);
  CHECK_EQ(now.host_bytes, uint64_t{0});
  CHECK_OK(um_prefetch(weight, 3 * kPage, 1, nullptr));  // its untouched page goes to the host too
  now = device.memory();
  CHECK_EQ(now.resident_bytes, kPage);
  CHECK_EQ(now.host_bytes, 3 * kPage);
  CHECK_EQ(now.resident_peak_bytes, 3 * kPage);
  unsigned char* plain = device.allocate(3 * kPage, kPlain);
  CHECK_EQ(device.memory().resident_by_role[UM_ROLE_INTERMEDIATE], device.memory().reserved_bytes - 2 * 64 * kMiB);
  device.free(plain);
}

// Three pages of parameters, then six of intermediates, which push the oldest parameter out of eight, then one of plain
// memory, which takes the next one's place.
TEST(residency_peaks_by_role_of_the_arena) {
  Device device(8 * kPage);
  unsigned char* weight = device.allocate(3 * kPage, kParameter);
  unsigned char* activation = device.allocate(6 * kPage, kIntermediate);
  CHECK_OK(um_allocation_label(activation, UM_ROLE_GRADIENT, 0));  // a name for it, not another arena
  const auto check = [&](uint64_t parameter, uint64_t parameter_peak, uint64_t intermediate,
                         uint64_t intermediate_peak) {
    const um_memory_stats now = device.memory();
    const uint64_t expected[UM_ROLE_COUNT] = {parameter, 0, intermediate};
    const uint64_t expected_peak[UM_ROLE_COUNT] = {parameter_peak, 0, intermediate_peak};
    for (int role = 0; role < UM_ROLE_COUNT; ++role) {
      CHECK_EQ(now.resident_by_role[role], expected[role] * kPage);
      CHECK_EQ(now.resident_peak_by_role[role], expected_peak[role] * kPage);
    }
    CHECK_EQ(now.resident_bytes, (parameter + intermediate) * kPage);
  };
  for (uint64_t page = 0; page < 3; ++page) weight[page * kPage] = 1;
  check(3, 3, 0, 0);
  for (uint64_t page = 0; page < 6; ++page) activation[page * kPage] = 1;
  check(2, 3, 6, 6);
  unsigned char* plain = device.allocate(kPage, kPlain);
  check(1, 3, 7, 7);
  device.free(plain);
  CHECK_OK(um_prefetch(activation, 6 * kPage, 1, nullptr));
  check(1, 3, 1, 7);  // the heap of plain memory keeps its last arena
  um_memory_reset_peaks(device);
  check(1, 1, 1, 1);
  CHECK_EQ(device.memory().resident_peak_bytes, 2 * kPage);
  device.free(weight);
  device.free(activation);
}

TEST(more_than_the_capacity_lives_on_the_host) {
  Device device(8 * kPage);
  unsigned char* data = device.allocate(20 * kPage);
  for (uint64_t page = 0; page < 20; ++page) std::memset(data + page * kPage, static_cast<int>(page + 1), kPage);
  const um_memory_stats now = device.memory();
  CHECK_EQ(now.resident_bytes, 8 * kPage);
  CHECK_EQ(now.host_bytes, 12 * kPage);
  const um_counters counters = device.counters();
  CHECK_EQ(counters.evictions, int64_t{12});
  CHECK_EQ(counters.bytes_d2h[UM_CAUSE_EVICTION], static_cast<int64_t>(12 * kPage));
  CHECK_EQ(counters.first_touches, int64_t{20});
  CHECK_EQ(counters.fault_groups, int64_t{20});
  CHECK_EQ(counters.unordered_faults, int64_t{20});  // outside ops nobody touches ahead
  CHECK_EQ(counters.remote_accesses, int64_t{UM_UNKNOWN});
  for (uint64_t page = 0; page < 20; ++page) {
    CHECK(test::holds(data + page * kPage, static_cast<unsigned char>(page + 1), kPage));
  }
}

TEST(workspace_is_what_no_op_has_seen) {
  Device device(64 * kMiB);
  unsigned char* weight = device.allocate(1000, kParameter);
  unsigned char* output = device.allocate(500);
  device.allocate(70);
  CHECK_EQ(device.memory().workspace_bytes, uint64_t{1570});
  CHECK_EQ(Device::at(weight).seen, 0u);
  device.op({test::read(weight, 1000), test::write(output, 500)});
  CHECK_EQ(Device::at(weight).seen, 1u);
  CHECK_EQ(device.memory().workspace_bytes, uint64_t{70});
}

TEST(advice_reaches_the_pages_of_its_own_arenas_only) {
  Device device(64 * kMiB);
  struct Case {
    um_advice advice;
    uint64_t resident_pages, host_pages;  // after one read of a page that lies on the host
    int64_t remote_maps;
  };
  for (const Case& each : {Case{UM_ADVICE_NONE, 1, 0, 0}, Case{UM_ADVICE_PREFERRED_LOCATION, 1, 0, 0},
                           Case{UM_ADVICE_ACCESSED_BY, 0, 1, 1}, Case{UM_ADVICE_READ_MOSTLY, 1, 1, 0}}) {
    Device fresh(64 * kMiB);
    unsigned char* data = fresh.allocate(kPage, test::advised(each.advice));
    CHECK_OK(um_prefetch(data, kPage, 1, nullptr));  // first touch by the host
    const int64_t before = fresh.counters().remote_maps;
    CHECK_EQ(data[0], 0);
    const um_memory_stats now = fresh.memory();
    CHECK_EQ(now.resident_bytes, each.resident_pages * kPage);
    CHECK_EQ(now.host_bytes, each.host_pages * kPage);
    if (each.advice != UM_ADVICE_ACCESSED_BY) CHECK_EQ(fresh.counters().remote_maps - before, each.remote_maps);
  }
}

TEST(prefetch_at_creation_makes_memory_resident_without_a_fault) {
  Device device(64 * kMiB);
  unsigned char* data = device.allocate(3 * kPage + 100, test::advised(UM_ADVICE_PREFETCH));
  CHECK_EQ(device.memory().resident_bytes, 4 * kPage);
  std::memset(data, 1, 3 * kPage + 100);
  CHECK_EQ(device.counters().fault_groups, int64_t{0});
  CHECK_EQ(device.counters().first_touches, int64_t{4});
}

TEST(placements_never_share_a_page) {
  Device device(64 * kMiB);
  std::vector<std::pair<uint64_t, um_allocation>> pages;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t role = 0; role < 3; ++role) {
      for (uint32_t advice = 0; advice < UM_ADVICE_COUNT; ++advice) {
        const um_allocation made = Device::at(device.allocate(1000 + 3000 * advice, {UM_MEMORY_MANAGED, role, advice}));
        for (const auto& [page, other] : pages) {
          if (page != made.address / kPage) continue;
          CHECK_EQ(other.role, made.role);
          CHECK_EQ(other.advice, made.advice);
        }
        pages.emplace_back(made.address / kPage, made);
      }
    }
  }
}

// Three blocks of 60 MiB that a step makes, touches and frees; arenas are of 64, 128 and 256 MiB.
static void step(Device& device) {
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(device.allocate(60 * kMiB));
    for (uint64_t at = 0; at < 60 * kMiB; at += kPage) blocks.back()[at] = 1;
  }
  for (unsigned char* block : blocks) device.free(block);
}

TEST(what_fits_stays_on_the_device_from_step_to_step) {
  Device device(512 * kMiB);
  step(device);
  const int64_t faults = device.counters().fault_groups;
  CHECK_EQ(faults, int64_t{90});
  const uint64_t reserved_bytes = device.memory().reserved_bytes;
  step(device);
  CHECK_EQ(device.counters().fault_groups, faults);
  CHECK_EQ(device.memory().reserved_bytes, reserved_bytes);
}

TEST(what_does_not_fit_gives_empty_arenas_back) {
  Device device(128 * kMiB);
  step(device);
  CHECK_EQ(device.memory().reserved_bytes, 128 * kMiB);  // the largest one
  CHECK_EQ(device.counters().bytes_h2d[UM_CAUSE_COHERENCE], int64_t{0});
  step(device);
  CHECK_EQ(device.counters().bytes_h2d[UM_CAUSE_COHERENCE], int64_t{0});  // nothing old came back
}

TEST(a_budget_is_the_room_that_counts) {
  Device device(512 * kMiB);
  CHECK_OK(um_budget_set(device, 128 * kMiB));
  step(device);
  CHECK_EQ(device.memory().reserved_bytes, 128 * kMiB);
  CHECK_OK(um_budget_set(device, 0));
  step(device);
  CHECK_EQ(device.memory().reserved_bytes, 128 * kMiB + 256 * kMiB);
}

TEST(a_small_device_does_not_lose_its_memory_to_plain_arenas) {
  Device device(8 * kPage);
  device.allocate(100, kPlain);
  CHECK_EQ(device.memory().resident_bytes, kPage);
  device.allocate(6 * kPage, kPlain);
  device.allocate(kPage, kPlain);
  CHECK_EQ(device.memory().resident_bytes, 8 * kPage);
}

TEST(plain_memory_keeps_its_limit) {
  Device device(64 * kMiB);
  CHECK_OK(um_plain_limit_set(device, 8 * kPage));
  unsigned char* six = device.allocate(6 * kPage, kPlain);
  void* none = nullptr;
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device, 3 * kPage, &kPlain, nullptr, &none));
  device.allocate(2 * kPage, kPlain);
  CHECK_EQ(device.memory().resident_bytes, 8 * kPage);
  // What is empty makes room; a wish for device memory that finds none goes to managed memory.
  device.free(six);
  device.allocate(6 * kPage, kPlain);
  const um_placement wish{UM_MEMORY_PREFER_DEVICE, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
  CHECK_OK(um_allocate(device, kPage, &wish, nullptr, &none));
  CHECK_EQ(device.memory().resident_bytes, 8 * kPage);
  CHECK_EQ(um_free(none), 1);
  CHECK_OK(um_plain_limit_set(device, 0));
  device.allocate(8 * kPage, kPlain);
}

TEST(empty_arenas_that_make_room_are_counted_once) {
  Device device(8 * kPage);
  unsigned char* large = device.allocate(4 * kPage, kPlain);
  unsigned char* small = device.allocate(3 * kPage, kPlain);
  device.free(large);
  device.free(small);
  device.allocate(8 * kPage, kPlain);
  CHECK_EQ(device.memory().reserved_bytes, 8 * kPage);
}
