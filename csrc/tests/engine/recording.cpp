// A device on tape: ops, accesses, allocations, copies, fault services and step edges, in order.
#include <thread>
#include <vector>

#include "engine_fixture.h"

using test::Device;
using test::kIntermediate;
using test::kPage;
using test::kParameter;
using test::read;
using test::write;

namespace {

template <class Row>
std::vector<Row> rows(um_device* device, uint64_t (*read_rows)(um_device*, Row*, uint64_t)) {
  std::vector<Row> all(read_rows(device, nullptr, 0));
  CHECK_EQ(read_rows(device, all.data(), all.size()), all.size());
  return all;
}

uint64_t serial_of(const void* address) {
  um_allocation allocation{};
  CHECK_OK(um_allocation_at(address, &allocation));
  return allocation.serial;
}

struct Expected {
  um_recorded_event_kind kind;
  uint64_t allocation;
  int32_t op;
  int inside;
};

void check_events(um_device* device, const std::vector<Expected>& expected) {
  const std::vector<um_recorded_event> events = rows(device, um_recorded_events);
  CHECK_EQ(events.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK_EQ(int{events[i].kind}, int{expected[i].kind});
    CHECK_EQ(events[i].allocation, expected[i].allocation);
    CHECK_EQ(events[i].op, expected[i].op);
    CHECK_EQ(int{events[i].inside}, expected[i].inside);
  }
}

}  // namespace

TEST(an_op_with_what_it_touches_and_makes) {
  Device device(16 * kPage);
  unsigned char* weight = device.allocate(kPage, kParameter);
  const uint64_t weight_serial = serial_of(weight);
  CHECK_OK(um_record(device, 1));
  CHECK_OK(um_step_set(device, 7));
  unsigned char *output = nullptr, *scratch = nullptr;
  um_access access = read(weight + 512, 1024);
  access.argument = 5;
  CHECK_OK(um_op_begin(device, um_intern("mm"), UM_PHASE_BACKWARD, um_intern("layer"), 0, &access, 1));
  output = device.allocate(kPage);
  scratch = device.allocate(kPage);
  const uint64_t output_serial = serial_of(output), scratch_serial = serial_of(scratch);
  device.free(scratch);
  const um_shown shown{output, nullptr};
  um_op_end(device, &shown, 1);
  CHECK_OK(um_allocation_label(output, UM_ROLE_GRADIENT, um_intern("grad")));
  device.free(output);
  CHECK_OK(um_record(device, 0));

  const std::vector<um_recorded_op> ops = rows(device, um_recorded_ops);
  CHECK_EQ(ops.size(), size_t{1});
  CHECK_EQ(std::string(um_string(ops[0].op)), std::string("mm"));
  CHECK_EQ(std::string(um_string(ops[0].module)), std::string("layer"));
  CHECK_EQ(ops[0].phase, uint32_t{UM_PHASE_BACKWARD});
  CHECK_EQ(ops[0].step, 7u);
  CHECK(ops[0].duration_ns >= 0);
  CHECK_EQ(ops[0].access_count, uint64_t{1});
  CHECK_EQ(rows(device, um_recorded_outputs).at(ops[0].first_output), output_serial);

  const um_recorded_access touched = rows(device, um_recorded_accesses).at(0);
  CHECK_EQ(touched.allocation, weight_serial);
  CHECK_EQ(touched.offset_bytes, uint64_t{512});
  CHECK_EQ(touched.bytes, uint64_t{1024});
  CHECK_EQ(touched.argument, 5u);

  check_events(device, {{UM_RECORDED_ALLOCATE, weight_serial, -1, 0},
                        {UM_RECORDED_ALLOCATE, output_serial, 0, 1},
                        {UM_RECORDED_ALLOCATE, scratch_serial, 0, 1},
                        {UM_RECORDED_FREE, scratch_serial, 0, 1},
                        {UM_RECORDED_FREE, output_serial, 0, 0}});
  const std::vector<um_recorded_allocation> allocations = rows(device, um_recorded_allocations);
  CHECK_EQ(allocations.size(), size_t{3});
  CHECK_EQ(allocations[1].role, uint32_t{UM_ROLE_GRADIENT});  // as it was last, though it is gone
  CHECK_EQ(std::string(um_string(allocations[1].name)), std::string("grad"));
  CHECK_EQ(allocations[1].seen, 1u);
  CHECK_EQ(allocations[2].seen, 0u);
  CHECK_EQ(um_recorded_lost(device), uint64_t{0});
}

TEST(copies_and_step_edges) {
  Device device(16 * kPage);
  CHECK_OK(um_record(device, 1));
  unsigned char* block = device.allocate(kPage);
  const uint64_t serial = serial_of(block);
  std::vector<unsigned char> host(4096, 1);
  CHECK_OK(um_step_set(device, 1));
  CHECK_OK(um_copy_from_host(block + 100, host.data(), 4096));
  CHECK_OK(um_step_set(device, 0));
  CHECK_OK(um_copy_to_host(host.data(), block, 10));
  check_events(device, {{UM_RECORDED_ALLOCATE, serial, -1, 0},
                        {UM_RECORDED_HOST_WRITE, serial, -1, 0},
                        {UM_RECORDED_HOST_READ, serial, -1, 0}});
  const std::vector<um_recorded_event> events = rows(device, um_recorded_events);
  CHECK_EQ(events[1].offset_bytes, int64_t{100});
  CHECK_EQ(events[1].bytes, uint64_t{4096});
  CHECK_EQ(events[2].bytes, uint64_t{10});
  const std::vector<um_recorded_edge> edges = rows(device, um_recorded_edges);
  CHECK_EQ(edges.size(), size_t{2});
  CHECK_EQ(edges[0].step, 1u);
  CHECK_EQ(edges[0].first_event, uint64_t{1});
  CHECK_EQ(edges[1].step, 0u);
  CHECK_EQ(edges[1].first_event, uint64_t{2});
}

TEST(raw_counting_records_every_service_in_order) {
  Device device(16 * kPage, UM_COUNTING_RAW);
  unsigned char* block = device.allocate(3 * kPage);
  const uint64_t serial = serial_of(block);
  um_events_enable(device, 1);
  CHECK_OK(um_record(device, 1));
  block[2 * kPage] = 1;  // between ops
  device.op({read(block, kPage), write(block + kPage, kPage)}, [&] {
    volatile unsigned char* bytes = block;  // both volatile: the compiler keeps their order
    static_cast<void>(bytes[0]);
    bytes[kPage] = 1;
  });
  check_events(device, {{UM_RECORDED_ALLOCATE, serial, -1, 0},
                        {UM_RECORDED_SERVICE_WRITE, serial, -1, 0},
                        {UM_RECORDED_SERVICE_READ, serial, 0, 1},
                        {UM_RECORDED_SERVICE_WRITE, serial, 0, 1}});
  const std::vector<um_recorded_event> events = rows(device, um_recorded_events);
  CHECK_EQ(events[1].offset_bytes, static_cast<int64_t>(2 * kPage));
  CHECK_EQ(events[2].offset_bytes, int64_t{0});
  CHECK_EQ(events[3].offset_bytes, static_cast<int64_t>(kPage));
}

TEST(ordered_counting_records_only_what_the_guard_did_not_foresee) {
  Device device(16 * kPage);
  unsigned char* block = device.allocate(2 * kPage);
  um_events_enable(device, 1);
  CHECK_OK(um_record(device, 1));
  device.op({read(block, kPage)}, [&] { block[kPage] = 1; });
  const std::vector<um_recorded_event> events = rows(device, um_recorded_events);
  CHECK_EQ(events.size(), size_t{2});
  CHECK_EQ(int{events[1].kind}, int{UM_RECORDED_SERVICE_WRITE});
  CHECK_EQ(events[1].offset_bytes, static_cast<int64_t>(kPage));
}

TEST(a_new_recording_forgets_the_last_one_even_within_an_op) {
  Device device(16 * kPage);
  unsigned char* block = device.allocate(kPage);
  CHECK_OK(um_record(device, 1));
  device.op({read(block, kPage)}, [&] { CHECK_OK(um_record(device, 1)); });
  CHECK(rows(device, um_recorded_ops).empty());
  device.op({read(block, kPage)}, [] {});
  CHECK_OK(um_record(device, 0));
  device.op({read(block, kPage)}, [] {});
  CHECK_EQ(rows(device, um_recorded_ops).size(), size_t{1});
  CHECK_EQ(rows(device, um_recorded_accesses).size(), size_t{1});
}

TEST(threads_that_allocate_while_ops_run) {
  Device device(64 * kPage);
  unsigned char* block = device.allocate(kPage);
  CHECK_OK(um_record(device, 1));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        void* address = nullptr;
        CHECK_OK(um_allocate(device, 4096, &kIntermediate, nullptr, &address));
        const um_access access = read(block, 64);
        CHECK_OK(um_op_begin(device, um_intern("op"), UM_PHASE_FORWARD, 0, 0, &access, 1));
        um_op_end(device, nullptr, 0);
        CHECK_EQ(um_free(address), 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_OK(um_record(device, 0));
  CHECK_EQ(rows(device, um_recorded_ops).size(), size_t{800});
  CHECK_EQ(rows(device, um_recorded_accesses).size(), size_t{800});
  CHECK_EQ(rows(device, um_recorded_events).size(), size_t{1601});
}
