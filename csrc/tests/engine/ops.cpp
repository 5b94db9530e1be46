// The guard: ordered counting against closed forms, attribution of events, births, oversized ops.
#include <algorithm>
#include <random>
#include <thread>

#include "engine/event_log.h"
#include "engine_fixture.h"

using test::Device;
using test::kIntermediate;
using test::kMiB;
using test::kPage;
using test::kParameter;
using test::kPlain;
using test::read;
using test::write;

namespace {

std::string name(uint32_t id) { return um_string(id); }

// A training step on a device that holds 6 of its 12 pages: weights of one page, activations as they come.
std::vector<int64_t> train(int threads, int steps) {
  Device device(6 * kPage);
  std::vector<unsigned char*> weights;
  for (int i = 0; i < 6; ++i) weights.push_back(device.allocate(kPage, kParameter));
  for (int step = 1; step <= steps; ++step) {
    CHECK_OK(um_step_set(device, static_cast<uint32_t>(step)));
    std::vector<unsigned char*> activations;
    for (int i = 0; i < 6; ++i) {
      unsigned char* input = activations.empty() ? weights[0] : activations.back();
      unsigned char* output = nullptr;
      device.op({read(weights[static_cast<size_t>(i)], kPage), read(input, kPage)}, [&] {
        output = device.allocate(kPage);
        std::vector<std::thread> kernel;  // each thread reads all inputs and writes its share, in any order
        for (int t = 0; t < threads; ++t) {
          kernel.emplace_back([=] {
            const uint64_t share = kPage / static_cast<uint64_t>(threads);
            const uint64_t first = share * static_cast<uint64_t>(t);
            for (uint64_t at = first; at < first + share; at += 512) {
              output[at] = static_cast<unsigned char>(input[at] + weights[static_cast<size_t>(i)][at] + step);
            }
          });
        }
        for (std::thread& thread : kernel) thread.join();
      });
      activations.push_back(output);
    }
    for (unsigned char* weight : weights) {
      device.op({write(weight, kPage)}, [&] { weight[0] = static_cast<unsigned char>(weight[0] + 1); });
    }
    for (unsigned char* activation : activations) device.free(activation);
  }
  const um_counters counters = device.counters();
  CHECK_EQ(counters.unordered_faults, int64_t{0});
  CHECK_EQ(counters.oversized_ops, int64_t{0});
  CHECK_EQ(counters.op_count, int64_t{12} * steps);
  return {counters.fault_groups,
          counters.first_touches,
          counters.evictions,
          counters.evictions_dropped,
          counters.bytes_h2d[UM_CAUSE_COHERENCE],
          counters.bytes_d2h[UM_CAUSE_EVICTION]};
}

}  // namespace

TEST(an_op_touches_its_reads_then_its_writes) {
  Device device(64 * kMiB);
  unsigned char* a = device.allocate(2 * kPage, kParameter);
  unsigned char* b = device.allocate(kPage, test::kInput);
  um_events_enable(device, 1);
  device.op({write(b, kPage), read(a, 2 * kPage)});
  const std::vector<um_event> events = device.events();
  std::vector<std::pair<uint64_t, int>> groups;
  for (const um_event& event : events) {
    if (event.kind == UM_EVENT_FAULT_GROUP) groups.emplace_back(event.address, event.write);
    CHECK_EQ(event.unordered, 0);
  }
  const uint64_t first = reinterpret_cast<uint64_t>(a);
  CHECK((groups ==
         std::vector<std::pair<uint64_t, int>>{{first, 0}, {first + kPage, 0}, {reinterpret_cast<uint64_t>(b), 1}}));
  CHECK_EQ(device.counters().fault_groups, int64_t{3});
  device.op({read(a, 2 * kPage), write(b, kPage)}, [&] { b[7] = a[kPage + 5]; });
  CHECK_EQ(device.counters().fault_groups, int64_t{3});
}

TEST(an_edge_is_what_the_separate_calls_are) {
  Device device(64 * kMiB);
  unsigned char* block = device.allocate(2 * kPage, kParameter);
  um_events_enable(device, 1);
  device.op({write(block, 2 * kPage)});
  um_edge edge{};
  CHECK_OK(um_edge_approach(device, &edge));
  CHECK(edge.at_ns > 0 && edge.times.compute_ns > 0);
  CHECK_OK(um_edge_begin(device, 3, &edge));
  CHECK_EQ(edge.events, uint64_t{2});
  CHECK_EQ(edge.counters.fault_groups, int64_t{0});  // nothing was read, and no step has begun
  device.op({read(block, kPage)});
  for (const um_event& event : device.events()) CHECK_EQ(event.step, 0u);
  CHECK_OK(um_edge_begin(device, 3, &edge));
  CHECK_EQ(edge.events, uint64_t{0});
  CHECK_EQ(edge.counters.fault_groups, int64_t{2});
  unsigned char* other = device.allocate(kPage, kParameter);
  device.op({write(other, kPage)});
  CHECK_OK(um_edge_end(device, &edge));
  CHECK_EQ(edge.events, uint64_t{1});
  CHECK_EQ(device.events().front().step, 3u);
  const um_counters counters = device.counters();
  const um_memory_stats memory = device.memory();
  CHECK(std::memcmp(&edge.counters, &counters, sizeof counters) == 0);
  CHECK(std::memcmp(&edge.memory, &memory, sizeof memory) == 0);
  device.op({write(device.allocate(kPage, kParameter), kPage)});
  CHECK_EQ(device.events().front().step, 0u);
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_edge_read(device, nullptr));
}

TEST(sums_of_steps_are_those_of_their_readings) {
  Device device(64 * kMiB);
  unsigned char* block = device.allocate(4 * kPage, kParameter);
  um_events_enable(device, 1);
  std::vector<um_residency> rows(2 * 16);
  um_step_sums sums{};
  sums.rows = rows.data();
  sums.row_capacity = 16;
  um_edge begun{}, ended{};
  const auto step = [&](uint32_t number, uint64_t bytes) {
    CHECK_OK(um_edge_approach(device, &begun));
    CHECK_OK(um_edge_begin(device, number, &begun));
    um_memory_reset_peaks(device);
    device.op({read(block, bytes)});
    device.events();
    CHECK_OK(um_edge_end(device, &ended));
    return um_step_sums_add(device, &begun, &ended, &sums);
  };
  int64_t groups = 0, length_ns = 0;
  uint64_t most_bytes = 0;
  for (uint32_t number = 1; number <= 3; ++number) {
    CHECK_EQ(step(number, number * kPage), 1);
    CHECK_EQ(sums.count, uint64_t{number});
    CHECK_EQ(sums.last.counters.fault_groups, ended.counters.fault_groups - begun.counters.fault_groups);
    CHECK_EQ(sums.last.at_ns, ended.at_ns - begun.at_ns);
    groups += sums.last.counters.fault_groups;
    length_ns += sums.last.at_ns;
    most_bytes = std::max(most_bytes, ended.memory.resident_peak_bytes);
  }
  CHECK_EQ(groups, int64_t{3});
  CHECK_EQ(sums.all.counters.fault_groups, groups);
  CHECK_EQ(sums.all.counters.op_count, int64_t{3});
  CHECK_EQ(sums.all.at_ns, length_ns);
  CHECK_EQ(sums.all.memory.resident_peak_bytes, most_bytes);
  uint64_t op_rows = 0;
  for (uint64_t i = 0; i < sums.summed_rows; ++i) op_rows += rows[i].subject == UM_RESIDENCY_OP;
  CHECK(sums.summed_rows > 0 && op_rows > 0);
  device.allocate(kPage, kParameter);  // one more tensor: the next step has other rows
  const um_step_sums before = sums;
  CHECK_EQ(step(4, kPage), 0);
  CHECK_EQ(sums.count, before.count);
  CHECK(std::memcmp(&sums.all, &before.all, sizeof before.all) == 0);
  sums.count = 0;
  sums.row_capacity = 1;
  CHECK_EQ(step(5, kPage), 0);
  CHECK(sums.row_count > 1);
  sums.row_capacity = 16;
  CHECK_EQ(step(6, kPage), 1);
  CHECK_EQ(sums.all.counters.op_count, int64_t{1});
}

TEST(counters_repeat_exactly_at_any_thread_count) {
  const std::vector<int64_t> once = train(1, 4);
  CHECK(once[2] > 0);
  for (int threads : {1, 2, 5}) CHECK(train(threads, 4) == once);
}

// Capacity 4, first in first out: pages that are next in line for eviction must not leave for their own op's other
// pages.
TEST(an_op_that_fits_never_faults_inside_whatever_the_order_of_service) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    Device device(5 * kPage);
    std::vector<unsigned char*> pages;
    for (int i = 0; i < 9; ++i) pages.push_back(device.allocate(kPage));
    for (int op = 0; op < 20; ++op) {
      std::shuffle(pages.begin(), pages.end(), random);
      const size_t inputs = 1 + random() % 4;
      std::vector<um_access> accesses;
      for (size_t i = 0; i < inputs; ++i)
        accesses.push_back(random() % 2 != 0 ? read(pages[i], kPage) : write(pages[i], kPage));
      device.op(accesses, [&] {
        unsigned char* output = device.allocate(kPage, kIntermediate);
        for (size_t i = 0; i < inputs; ++i) {
          output[i] = pages[i][0];
          if (accesses[i].write != 0) pages[i][1] = 2;
        }
        device.free(output);
      });
    }
    CHECK_EQ(device.counters().unordered_faults, int64_t{0});
  }
}

TEST(allocations_inside_an_op_are_touched_unless_it_only_creates) {
  Device device(64 * kMiB);
  device.op({}, [&] { device.allocate(3 * kPage); }, "aten::empty", true);
  CHECK_EQ(device.counters().fault_groups, int64_t{0});
  device.op({}, [&] { device.allocate(3 * kPage); }, "aten::mul");
  CHECK_EQ(device.counters().fault_groups, int64_t{3});
  CHECK_EQ(device.counters().first_touches, int64_t{3});
  device.op({}, [&] { device.allocate(kPage, kPlain); }, "aten::mul");
  CHECK_EQ(device.counters().fault_groups, int64_t{3});
  device.allocate(kPage);  // outside ops
  CHECK_EQ(device.counters().fault_groups, int64_t{3});
}

TEST(raw_counting_touches_nothing_ahead) {
  Device device(64 * kMiB, UM_COUNTING_RAW);
  unsigned char* data = device.allocate(2 * kPage);
  device.op({write(data, 2 * kPage)}, [&] {
    CHECK_EQ(device.counters().fault_groups, int64_t{0});
    data[kPage] = 1;
    device.allocate(kPage);
  });
  CHECK_EQ(device.counters().fault_groups, int64_t{1});
  CHECK_EQ(device.counters().unordered_faults, int64_t{0});
  CHECK_EQ(device.memory().resident_peak_bytes, kPage);
}

TEST(events_name_the_op_and_the_allocation) {
  Device device(4 * kPage);
  um_events_enable(device, 1);
  CHECK_OK(um_step_set(device, 7));
  unsigned char* weight = device.allocate(2 * kPage, kParameter);
  CHECK_OK(um_allocation_label(weight, UM_ROLE_PARAMETER, um_intern("layer.weight")));
  unsigned char* output = nullptr;
  device.op({read(weight, 2 * kPage)}, [&] { output = device.allocate(2 * kPage); }, "first");
  const uint64_t born = Device::at(output).serial;
  device.op({}, [&] { device.allocate(kPage); }, "second");  // evicts the first page of the weight
  device.free(output);
  const std::vector<um_event> events = device.events();
  int evictions = 0, outputs = 0;
  for (const um_event& event : events) {
    CHECK_EQ(event.step, 7u);
    if (event.kind == UM_EVENT_LABEL) {
      CHECK_EQ(name(event.name), "layer.weight");
      continue;
    }
    CHECK_EQ(event.phase, uint32_t{UM_PHASE_FORWARD});
    CHECK_EQ(name(event.module), "module");
    CHECK_EQ(event.op_index, name(event.op) == "first" ? 1u : 2u);
    CHECK(event.start_ns > 0 && event.duration_ns >= 0);
    if (event.kind == UM_EVENT_EVICTION) {
      ++evictions;
      CHECK_EQ(name(event.op), "second");
      CHECK_EQ(name(event.name), "layer.weight");
      CHECK_EQ(event.bytes, kPage);
      CHECK_EQ(event.allocation_bytes, 2 * kPage);
    }
    if (event.allocation == born) {  // known although it was freed before anybody asked
      ++outputs;
      CHECK_EQ(name(event.birth_op), "first");
      CHECK_EQ(name(event.birth_module), "module");
    }
  }
  CHECK_EQ(evictions, 1);
  CHECK_EQ(outputs, 2);
  const um_allocation at = Device::at(device.allocate(10));
  CHECK_EQ(at.birth_step, 7u);
  CHECK_EQ(at.birth_op_index, 0u);
  CHECK_EQ(at.birth_op, 0u);
}

TEST(faults_outside_ops_keep_their_step) {
  Device device(64 * kMiB);
  um_events_enable(device, 1);
  CHECK_OK(um_step_set(device, 3));
  unsigned char* data = device.allocate(kPage);
  device.op({});
  data[0] = 1;
  const std::vector<um_event> events = device.events();
  CHECK(!events.empty());
  for (const um_event& event : events) {
    CHECK_EQ(event.step, 3u);
    CHECK_EQ(event.op_index, 0u);
    CHECK_EQ(event.op, 0u);
    CHECK_EQ(event.unordered, 1);
  }
}

TEST(events_are_off_until_they_are_asked_for) {
  Device device(4 * kPage);
  unsigned char* data = device.allocate(16 * kPage);
  data[0] = 1;
  CHECK(device.events().empty());
  um_events_enable(device, 1);
  data[kPage] = 1;
  um_events_enable(device, 0);
  data[2 * kPage] = 1;
  const std::vector<um_event> events = device.events();
  CHECK_EQ(events.size(), size_t{1});
  CHECK_EQ(events[0].address, reinterpret_cast<uint64_t>(data + kPage));
  CHECK_EQ(um_events_dropped(device), uint64_t{0});
}

TEST(a_full_event_log_keeps_the_oldest_and_counts_the_rest) {
  um::EventLog log;
  um_event event{};
  for (uint64_t i = 0; i < um::EventLog::kMostEvents + 5; ++i) {
    event.address = i;
    log.push(event);
  }
  CHECK_EQ(log.dropped(), uint64_t{5});
  std::vector<um_event> out(1000);
  CHECK_EQ(log.drain(out.data(), out.size()), uint64_t{1000});
  for (uint64_t i = 0; i < 1000; ++i) CHECK_EQ(out[i].address, i);
  log.push(event);
  CHECK_EQ(log.dropped(), uint64_t{5});
  uint64_t left = 0;
  while (const uint64_t count = log.drain(out.data(), out.size())) left += count;
  CHECK_EQ(left, um::EventLog::kMostEvents - 1000 + 1);
}

TEST(ops_do_not_nest_and_indices_restart_with_the_step) {
  Device device(64 * kMiB), other(16 * kMiB);
  um_events_enable(device, 1);
  for (uint32_t step = 1; step <= 2; ++step) {
    CHECK_OK(um_step_set(device, step));
    for (uint32_t i = 1; i <= 3; ++i) {
      device.op({}, [&] {
        CHECK_FAILS(UM_BAD_STATE, um_op_begin(device, 0, 0, 0, 0, nullptr, 0));
        CHECK_FAILS(UM_BAD_STATE, um_op_begin(other, 0, 0, 0, 0, nullptr, 0));
        um_op_end(other, nullptr, 0);  // not the one that runs
        const um_allocation made = Device::at(device.allocate(10));
        CHECK_EQ(made.birth_step, step);
        CHECK_EQ(made.birth_op_index, i);
        CHECK_EQ(Device::at(other.allocate(10)).birth_op_index, 0u);
      });
    }
  }
  um_op_end(device, nullptr, 0);
  CHECK_EQ(device.counters().op_count, int64_t{6});
}

TEST(an_op_larger_than_the_device_runs_and_is_reported) {
  Device device(4 * kPage);
  um_events_enable(device, 1);
  unsigned char* data = device.allocate(5 * kPage);
  unsigned char* shared = device.allocate(kPage);
  device.op({read(shared, 100), read(shared + 200, 100), read(shared + 400, 100), read(shared + 600, 100),
             read(shared + 800, 100)});
  CHECK_EQ(device.counters().oversized_ops, int64_t{0});  // one page, however often it is named
  device.op({write(data, 5 * kPage), read(shared, kPage)}, [&] { std::memset(data, 4, 5 * kPage); }, "huge");
  CHECK(test::holds(data, 4, 5 * kPage));
  CHECK_EQ(device.counters().oversized_ops, int64_t{1});
  const std::vector<um_event> events = device.events();
  const auto report = std::find_if(events.begin(), events.end(),
                                   [](const um_event& event) { return event.kind == UM_EVENT_OVERSIZED_OP; });
  CHECK(report != events.end());
  CHECK_EQ(report->bytes, 6 * kPage);
  CHECK_EQ(name(report->op), "huge");
  CHECK_EQ(name(report->module), "module");
  CHECK_EQ(report->op_index, 2u);
  CHECK(device.counters().unordered_faults > 0);
  device.op({read(shared, kPage)}, [&] { device.allocate(4 * kPage); }, "grows");
  CHECK_EQ(device.counters().oversized_ops, int64_t{2});
}

TEST(plain_memory_narrows_what_an_op_may_use) {
  Device device(4 * kPage);
  unsigned char* data = device.allocate(3 * kPage);
  device.op({read(data, 3 * kPage)});
  CHECK_EQ(device.counters().oversized_ops, int64_t{0});
  device.allocate(2 * kPage, kPlain);
  device.op({read(data, 3 * kPage)});
  CHECK_EQ(device.counters().oversized_ops, int64_t{1});
}

TEST(foreign_and_odd_accesses_are_ignored) {
  Device device(64 * kMiB), other(64 * kMiB);
  unsigned char* data = device.allocate(kPage);
  unsigned char* theirs = other.allocate(kPage);
  int local = 0;
  device.op({read(&local, sizeof(local)), read(nullptr, 0), write(theirs, kPage), write(data, 0), read(data, 1)});
  CHECK_EQ(device.counters().fault_groups, int64_t{1});
  CHECK_EQ(other.counters().fault_groups, int64_t{0});
}

TEST(an_access_ends_with_its_allocation) {
  Device device(64 * kMiB);
  unsigned char* data = device.allocate(2 * kPage);
  device.allocate(kPage);  // behind it
  CHECK_OK(um_budget_set(device, 16 * kMiB));
  const uint64_t to_the_top = ~uint64_t{0} - reinterpret_cast<uint64_t>(data);
  for (const uint64_t bytes : {3 * kPage, uint64_t{1} << 40, to_the_top, ~uint64_t{0}}) {
    device.op({read(data, bytes), write(data + kPage, bytes)});
  }
  CHECK_EQ(device.counters().fault_groups, int64_t{2});
  CHECK_EQ(device.counters().oversized_ops, int64_t{0});
}

TEST(what_an_op_prefetches_or_allocates_does_not_push_its_inputs_out) {
  for (const um_advice advice : {UM_ADVICE_NONE, UM_ADVICE_PREFETCH}) {
    Device device(4 * kPage);
    unsigned char* input = device.allocate(kPage, kParameter);  // serviced first, so next in line
    unsigned char* others = device.allocate(3 * kPage, kParameter);
    device.op({read(input, kPage), read(others, 3 * kPage)});
    device.op({read(input, kPage)}, [&] {
      unsigned char* output = device.allocate(2 * kPage, test::advised(advice, UM_ROLE_INTERMEDIATE));
      output[kPage] = input[0];
    });
    CHECK_EQ(device.counters().unordered_faults, int64_t{0});
  }
}

TEST(an_oversized_op_is_touched_once_and_not_for_each_of_its_allocations) {
  Device device(4 * kPage);
  unsigned char* data = device.allocate(6 * kPage);
  device.op({read(data, 6 * kPage)}, [&] {
    for (int i = 0; i < 10; ++i) device.allocate(100);  // all in one page
  });
  CHECK_EQ(device.counters().fault_groups, int64_t{6 + 1});
}
