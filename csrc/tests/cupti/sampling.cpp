// A CUDA device's counters, end to end: the core on a libcuda.so.1 behind which the emulated device works, and on a
// stand-in for CUPTI that tells of what happens there. So what the records add up to can be compared with what the
// device counted itself; records that no device writes are added by hand.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "cuda_fixture.h"
#include "fake_cupti/fake_cupti.h"

using namespace um::cupti;
using test::kMiB;
using test::kPage;
using test::read;
using test::write;

namespace {

FakeCupti& fake() { return *fake_cupti(); }

um_device* opened(uint32_t every = 1) {
  fake().reset();
  emulated_libcuda_reset();
  um_device* device = nullptr;
  CHECK_OK(um_device_open_cuda(0, &device));
  CHECK_OK(um_sampling_set(device, every));
  um_events_enable(device, 1);
  return device;
}

um_sampling sampling(um_device* device) {
  um_sampling out{};
  CHECK_OK(um_sampling_read(device, &out));
  return out;
}

um::driver::DeviceTotals totals() {
  um::driver::DeviceTotals out{};
  emulated_libcuda_hooks()->totals(0, &out);
  return out;
}

// A record of now, as the running op causes it.
FakeCupti::Record record(CUpti_ActivityUnifiedMemoryCounterKind kind, const void* address, uint64_t value,
                         uint32_t flags) {
  FakeCupti::Record made{};
  made.kind = CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER;
  made.counterKind = kind;
  made.start = static_cast<uint64_t>(um::now_ns() + FakeCupti::kClockOffsetNs);
  made.end = made.start + 1000;
  made.address = reinterpret_cast<uint64_t>(address);
  made.value = value;
  made.flags = flags;
  made.processId = static_cast<uint32_t>(getpid());
  return made;
}

constexpr auto kToDevice = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD;
constexpr auto kToHost = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH;
constexpr auto kHostFault = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT;
constexpr auto kFault = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT;

// A step in which these records come about, however long ago they were made.
um_counters step_with(um_device* device, std::vector<FakeCupti::Record> records) {
  const auto earlier = [](const auto& one, const auto& other) { return one.start < other.start; };
  const uint64_t first = std::min_element(records.begin(), records.end(), earlier)->start;
  CHECK_OK(um_step_set(device, 1));
  const uint64_t late_ns = static_cast<uint64_t>(um::now_ns() + FakeCupti::kClockOffsetNs) - first;
  for (FakeCupti::Record& each : records) {
    each.start += late_ns;
    each.end += late_ns;
    fake().add(each);
  }
  CHECK_OK(um_step_set(device, 0));
  CHECK_EQ(std::string(sampling(device).reason), std::string());
  return sampling(device).last;
}

}  // namespace

TEST(what_the_records_add_up_to_is_what_the_device_counted) {
  test::Device device(opened());
  constexpr uint64_t kBytes = 48 * kMiB;  // five of these are more than the device has
  std::vector<unsigned char*> data;
  for (int i = 0; i < 5; ++i) data.push_back(device.allocate(kBytes, test::kParameter));
  um_counters sums{};
  for (uint32_t step = 1; step <= 3; ++step) {
    const um::Counters before = totals().model;
    CHECK_OK(um_step_set(device, step));
    for (unsigned char* each : data) {
      device.op({write(each, kBytes)}, [&] { std::memset(each, static_cast<int>(step), kBytes); });
    }
    CHECK_OK(um_prefetch(data[0], kBytes, 0, nullptr));
    CHECK_OK(um_step_set(device, 0));
    const um_sampling sampled = sampling(device);
    const um::Counters after = totals().model;
    CHECK_EQ(std::string(sampled.reason), std::string());
    CHECK_EQ(sampled.last_step, step);
    CHECK_EQ(sampled.last.fault_groups, after.fault_groups - before.fault_groups);
    CHECK(sampled.last.fault_groups > 0);
    for (int cause = 0; cause < UM_CAUSE_COUNT; ++cause) {
      CHECK_EQ(sampled.last.bytes_h2d[cause], after.bytes_h2d[cause] - before.bytes_h2d[cause]);
      CHECK_EQ(sampled.last.bytes_d2h[cause], after.bytes_d2h[cause] - before.bytes_d2h[cause]);
    }
    CHECK_EQ(sampled.last.evictions, after.evictions - before.evictions);
    CHECK(step == 1 || sampled.last.evictions > 0);
    CHECK(sampled.last.fault_service_ns > 0);
    CHECK(sampled.last.fault_service_ns <= sampled.last_end_ns - sampled.last_start_ns);
    sums.fault_groups += sampled.last.fault_groups;
    sums.evictions += sampled.last.evictions;
  }
  const um_counters counters = device.counters();
  CHECK_EQ(counters.fault_groups, sums.fault_groups);
  CHECK_EQ(counters.evictions, sums.evictions);
  CHECK_EQ(counters.op_count, int64_t{15});
  for (const int64_t unknown :
       {counters.first_touches, counters.collapses, counters.evictions_dropped, counters.remote_accesses}) {
    CHECK_EQ(unknown, int64_t{UM_UNKNOWN});
  }
  CHECK_EQ(counters.unordered_faults, int64_t{0});
}

TEST(what_leaves_for_a_budget_leaves_for_an_op) {
  test::Device device(opened());
  CHECK_OK(um_budget_set(device, 8 * kMiB));
  unsigned char* const data = device.allocate(32 * kMiB, test::kParameter);
  CHECK_OK(um_step_set(device, 1));
  for (uint64_t at = 0; at < 32 * kMiB; at += 4 * kMiB)
    device.op({write(data + at, 4 * kMiB)}, [&] { std::memset(data + at, 1, 4 * kMiB); }, "fill");
  CHECK_OK(um_step_set(device, 0));
  uint64_t left_bytes = 0;
  int64_t stood_ns = 0;
  for (const um_event& event : device.events()) {
    if (event.kind == UM_EVENT_FAULT_GROUP || event.kind == UM_EVENT_EVICTION) stood_ns += event.duration_ns;
    if (event.kind != UM_EVENT_TRANSFER_D2H) continue;
    CHECK_EQ(std::string(um_string(event.op)), std::string("fill"));
    CHECK(event.op_index >= 3);
    left_bytes += event.bytes;
  }
  CHECK_EQ(left_bytes, 24 * kMiB);
  CHECK_EQ(sampling(device).last.evictions, int64_t{12});
  CHECK_EQ(sampling(device).last.fault_service_ns, stood_ns);
}

// An H100's driver copies 2 MiB in 84 us, which it records, and takes four times as long to unmap them, which it does
// not.
TEST(ops_stand_still_for_what_leaves_for_a_budget_whether_it_is_recorded_or_not) {
  test::Device device(opened());
  CHECK_OK(um_budget_set(device, 8 * kMiB));
  unsigned char* const data = device.allocate(32 * kMiB, test::kParameter);
  CHECK_OK(um_step_set(device, 1));
  for (uint64_t at = 0; at < 32 * kMiB; at += 4 * kMiB)
    device.op({write(data + at, 4 * kMiB)}, [&] { std::memset(data + at, 1, 4 * kMiB); });
  fake().records.clear();
  CHECK_OK(um_step_set(device, 0));
  const um_sampling sampled = sampling(device);
  CHECK_EQ(std::string(sampled.reason), std::string());
  CHECK(sampled.last_times.fault_room_ns > 0);
  CHECK_EQ(sampled.last_times.migration_ns, int64_t{0});
}

TEST(events_name_the_op_and_the_allocation) {
  test::Device device(opened());
  unsigned char* first = device.allocate(4 * kPage, test::kParameter);
  unsigned char* second = device.allocate(4 * kPage);
  CHECK_OK(um_allocation_label(first, UM_ROLE_PARAMETER, um_intern("weight")));
  CHECK_OK(um_step_set(device, 1));
  device.op({write(first, 4 * kPage)}, [&] { std::memset(first, 1, 4 * kPage); }, "fill");
  device.op({read(first, 4 * kPage), write(second, 4 * kPage)}, [&] { std::memcpy(second, first, 4 * kPage); }, "copy");
  CHECK_OK(um_step_set(device, 0));
  int fills = 0, copies = 0;
  for (const um_event& event : device.events()) {
    if (event.kind != UM_EVENT_FAULT_GROUP) continue;
    const bool is_fill = event.address < reinterpret_cast<uint64_t>(first) + 4 * kPage &&
                         event.address >= reinterpret_cast<uint64_t>(first);
    CHECK_EQ(std::string(um_string(event.op)), std::string(is_fill ? "fill" : "copy"));
    CHECK_EQ(event.op_index, is_fill ? 1u : 2u);
    CHECK_EQ(event.step, 1u);
    CHECK_EQ(event.phase, uint32_t{UM_PHASE_FORWARD});
    CHECK_EQ(event.allocation, test::Device::at(is_fill ? first : second).serial);
    CHECK_EQ(std::string(um_string(event.name)), std::string(is_fill ? "weight" : ""));
    CHECK_EQ(event.role, uint32_t{is_fill ? UM_ROLE_PARAMETER : UM_ROLE_INTERMEDIATE});
    CHECK_EQ(event.write, 1);
    ++(is_fill ? fills : copies);
  }
  CHECK_EQ(fills, 4);
  CHECK_EQ(copies, 4);
}

// The records are read when the step is over, and the memory is somebody else's by then.
TEST(a_record_belongs_to_who_lay_there_when_the_op_ran) {
  test::Device device(opened());
  device.allocate(kPage);  // what may fault
  CHECK_OK(um_step_set(device, 1));
  std::vector<std::pair<unsigned char*, uint64_t>> tenants;
  for (const char* name : {"one", "two", "three"}) {
    unsigned char* tenant = device.allocate(2 * kPage);
    CHECK_OK(um_allocation_label(tenant, UM_ROLE_GRADIENT, um_intern(name)));
    tenants.emplace_back(tenant, test::Device::at(tenant).serial);
    device.op({write(tenant, 2 * kPage)}, [&] { fake().add(record(kFault, tenant, 1, 1)); }, name);
    if (std::string(name) != "three") device.free(tenant);
  }
  CHECK(tenants[0].first == tenants[1].first && tenants[1].first == tenants[2].first);
  CHECK_OK(um_step_set(device, 0));
  std::vector<uint64_t> told;
  for (const um_event& event : device.events()) {
    if (event.kind == UM_EVENT_LABEL) continue;
    CHECK_EQ(event.name, event.op);
    told.push_back(event.allocation);
  }
  CHECK(told == std::vector<uint64_t>({tenants[0].second, tenants[1].second, tenants[2].second}));
}

// The host is far ahead of the device: when the first kernel faults, the next op has been given out, the memory has
// been freed and is another tensor's, and that one's op has been given out too.
TEST(faults_belong_to_the_op_that_ran_and_not_to_the_one_that_was_given_out_last) {
  test::Device device(opened());
  device.allocate(kPage);  // what may fault
  const test::Stream stream;
  um_op_stream_set(stream);
  struct Kernel {
    unsigned char* data;
    std::atomic<bool>* may_run;
    static void run(void* argument) {
      auto* const kernel = static_cast<Kernel*>(argument);
      while (!*kernel->may_run) std::this_thread::yield();
      // Longer than the two clocks may be apart.
      for (const int64_t begin_ns = um::now_ns(); um::now_ns() - begin_ns < 500000;) std::this_thread::yield();
      std::memset(kernel->data, 1, 4 * kPage);
    }
  };
  std::atomic<bool> may_run{false};
  CHECK_OK(um_step_set(device, 1));
  Kernel kernels[3];
  uint64_t serials[3];
  const char* const names[3] = {"first", "second", "third"};
  for (int i = 0; i < 3; ++i) {
    unsigned char* data = device.allocate(4 * kPage);
    kernels[i] = {data, &may_run};
    serials[i] = test::Device::at(data).serial;
    const auto launch = [&] {
      const test::Current current;
      CHECK_EQ(emulated_libcuda_launch(stream, Kernel::run, &kernels[i]), 0u);
    };
    device.op({write(data, 4 * kPage)}, launch, names[i]);
    if (i == 0) device.free(data);
  }
  CHECK(kernels[1].data == kernels[0].data);
  CHECK(kernels[2].data != kernels[0].data);
  may_run = true;
  CHECK_OK(um_step_set(device, 0));
  um_op_stream_set(nullptr);
  int found[3] = {};
  for (const um_event& event : device.events()) {
    if (event.kind != UM_EVENT_FAULT_GROUP) continue;
    const bool is_third = event.address >= reinterpret_cast<uint64_t>(kernels[2].data) &&
                          event.address < reinterpret_cast<uint64_t>(kernels[2].data) + 4 * kPage;
    const int op = is_third ? 2 : 0;  // the second's pages are there already
    CHECK_EQ(std::string(um_string(event.op)), std::string(names[op]));
    CHECK_EQ(event.op_index, static_cast<uint32_t>(op + 1));
    CHECK_EQ(event.allocation, serials[op]);
    ++found[op];
  }
  CHECK_EQ(found[0], 4);
  CHECK_EQ(found[1], 0);
  CHECK_EQ(found[2], 4);
}

TEST(without_the_devices_clock_faults_count_and_belong_to_no_op) {
  for (const char* symbol : {"cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"}) {
    test::Device device(opened());
    unsigned char* data = device.allocate(4 * kPage);
    emulated_libcuda_fails(symbol, 801, 1, 1000);
    CHECK_OK(um_step_set(device, 1));
    device.op({write(data, 4 * kPage)}, [&] { std::memset(data, 1, 4 * kPage); });
    CHECK_OK(um_step_set(device, 0));
    CHECK_EQ(sampling(device).last.fault_groups, int64_t{4});
    for (const um_event& event : device.events()) {
      CHECK_EQ(event.op_index, 0u);
      CHECK_EQ(event.allocation, test::Device::at(data).serial);
    }
  }
}

TEST(a_device_that_is_not_waited_for_is_not_sampled) {
  test::Device device(opened());
  device.allocate(kPage);
  for (const uint64_t call : {uint64_t{1}, uint64_t{2}}) {  // at the step's beginning; at its end
    emulated_libcuda_fails("cuCtxSynchronize", 999, call, call);
    CHECK_OK(um_step_set(device, 1));
    CHECK_OK(um_step_set(device, 0));
    CHECK_EQ(std::string(sampling(device).reason), std::string("waiting for the device failed: CUDA error 999"));
    CHECK_EQ(sampling(device).failed_steps, static_cast<int64_t>(call));
    CHECK(!fake().subscribed);
  }
}

TEST(an_allocation_above_a_hole_is_told_of_until_it_ends) {
  test::Device device(opened());
  unsigned char* hole = device.allocate(64 * 1024);
  unsigned char* brief = device.allocate(64 * 1024);
  unsigned char* after = device.allocate(64 * 1024);
  device.free(hole);
  const uint64_t serial = test::Device::at(brief).serial;
  CHECK_OK(um_step_set(device, 1));
  device.op({write(brief, 512)}, [&] { fake().add(record(kFault, hole, 1, 2)); });
  device.free(brief);
  device.op({write(after, 512)}, [&] { fake().add(record(kFault, hole, 1, 2)); });
  CHECK_OK(um_step_set(device, 0));
  const std::vector<um_event> events = device.events();
  CHECK_EQ(events.size(), size_t{2});
  CHECK_EQ(events[0].allocation, serial);
  CHECK_EQ(events[1].allocation, test::Device::at(after).serial);
  CHECK_OK(um_step_set(device, 2));  // in which nothing ends
  fake().add(record(kFault, hole, 1, 2));
  CHECK_OK(um_step_set(device, 0));
  CHECK_EQ(device.events()[0].allocation, test::Device::at(after).serial);
}

TEST(a_page_without_an_allocation_at_its_start_tells_of_the_first_in_it) {
  test::Device device(opened());
  unsigned char* data = device.allocate(kPage);
  unsigned char* hole = device.allocate(64 * 1024);
  unsigned char* after = device.allocate(64 * 1024);
  device.free(hole);
  CHECK_OK(um_step_set(device, 1));
  unsigned char* brief = device.allocate(64 * 1024);  // where the hole was
  CHECK(brief == hole);
  const uint64_t serial = test::Device::at(brief).serial;
  device.op({write(brief, 512)}, [&] { fake().add(record(kFault, brief + 4096, 1, 2)); });
  device.free(brief);
  device.op({write(after, 512)}, [&] { fake().add(record(kFault, brief + 4096, 1, 2)); });
  device.op({write(data, 512)}, [&] { fake().add(record(kFault, data, 1, 2)); });
  CHECK_OK(um_step_set(device, 0));
  const std::vector<um_event> events = device.events();
  CHECK_EQ(events.size(), size_t{3});
  CHECK_EQ(events[0].allocation, serial);
  CHECK_EQ(events[1].allocation, test::Device::at(after).serial);
  CHECK_EQ(events[2].allocation, test::Device::at(data).serial);
}

TEST(memory_that_went_back_to_the_driver_is_still_told_of) {
  test::Device device(opened());
  device.allocate(kPage);  // what may fault
  CHECK_OK(um_step_set(device, 1));
  unsigned char* large = device.allocate(64 * kMiB);
  const uint64_t serial = test::Device::at(large).serial;
  device.op({write(large, 512)}, [&] { fake().add(record(kFault, large + kPage, 1, 2)); });
  device.free(large);
  CHECK_OK(um_step_set(device, 0));
  CHECK_EQ(device.events()[0].allocation, serial);
  CHECK_EQ(sampling(device).last.fault_groups, int64_t{1});
}

TEST(causes_and_kinds) {
  test::Device device(opened());
  unsigned char* data = device.allocate(8 * kPage);
  std::vector<FakeCupti::Record> records;
  for (uint32_t cause = 1; cause <= 5; ++cause) {
    records.push_back(record(kToDevice, data, cause, cause));
    records.push_back(record(kToHost, data, 10 * cause, cause));
  }
  records.push_back(record(kToDevice, data, 1000, 0));
  records.push_back(record(kToHost, data, 2000, 6));
  records.push_back(record(kHostFault, data, ~uint64_t{0}, 1));  // the value is where the program was
  records.push_back(record(kFault, data, 7, CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_ATOMIC));
  records.push_back(record(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THRASHING, data, 4096, 0));
  records.push_back(record(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING, data, 1, 0));
  for (uint32_t cause = 0; cause <= 6; ++cause) {
    records.push_back(record(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP, data, 512, cause));
  }
  records.push_back(record(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD, data, 1, 1));
  const um_counters last = step_with(device, records);
  for (int cause = 0; cause < UM_CAUSE_COUNT; ++cause) {
    CHECK_EQ(last.bytes_h2d[cause], int64_t{cause + 1});
    CHECK_EQ(last.bytes_d2h[cause], int64_t{10 * (cause + 1)});
  }
  CHECK_EQ(last.evictions, int64_t{1});
  CHECK_EQ(last.remote_maps, int64_t{7});
  const um_sampling sampled = sampling(device);
  CHECK_EQ(sampled.unknown_cause_bytes, int64_t{3000});
  CHECK_EQ(sampled.host_faults, int64_t{1});
  CHECK_EQ(sampled.page_faults, int64_t{7});
  CHECK_EQ(sampled.thrashing_bytes, int64_t{4096});
  CHECK_EQ(sampled.throttles, int64_t{1});
  CHECK(std::abs(sampled.throttled_ns - 1000) <= 1);
  CHECK_EQ(sampled.remote_map_bytes, int64_t{7 * 512});
  CHECK_EQ(sampled.remote_maps_by_cause[0], int64_t{2});  // one that is new
  for (int cause = 1; cause <= 5; ++cause) CHECK_EQ(sampled.remote_maps_by_cause[cause], int64_t{1});
  int writes = 0, remote = 0;
  for (const um_event& event : device.events()) {
    writes += event.kind == UM_EVENT_FAULT_GROUP && event.write != 0;
    remote += event.kind == UM_EVENT_REMOTE_MAP && event.bytes == 512;
  }
  CHECK_EQ(writes, 1);
  CHECK_EQ(remote, 7);
}

TEST(runs_of_one_evicted_block_are_one_eviction) {
  test::Device device(opened());
  unsigned char* data = device.allocate(4 * kPage);
  unsigned char* block =
      reinterpret_cast<unsigned char*>((reinterpret_cast<uint64_t>(data) + kPage - 1) / kPage * kPage);
  std::vector<FakeCupti::Record> records;
  const int64_t now_ns = um::now_ns();
  int64_t order = 0;
  for (const uint64_t offset : {uint64_t{0}, 64 * 1024ul, 512 * 1024ul, kPage, kPage + 4096, uint64_t{0}}) {
    records.push_back(record(kToHost, block + offset, 4096, CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_EVICTION));
    records.back().start = static_cast<uint64_t>(now_ns + FakeCupti::kClockOffsetNs + 10000 * order++);
    records.back().end = records.back().start + 5000;
  }
  CHECK_EQ(step_with(device, records).evictions, int64_t{3});
}

// A batch of the driver's has one window, which each of its groups repeats; and windows may overlap.
TEST(service_time_is_counted_once) {
  test::Device device(opened());
  unsigned char* data = device.allocate(8 * kPage);
  std::vector<FakeCupti::Record> records;
  const uint64_t begin = static_cast<uint64_t>(um::now_ns() + FakeCupti::kClockOffsetNs);
  const auto fault = [&](uint64_t from, uint64_t to) {
    records.push_back(record(kFault, data, 1, 1));
    records.back().start = begin + from;
    records.back().end = begin + to;
  };
  for (int i = 0; i < 4; ++i) fault(0, 4000);
  fault(2000, 6000);
  fault(3000, 5000);  // covered
  fault(10000, 10000);
  fault(20000, 12000);  // ends before it begins
  const um_counters last = step_with(device, records);
  CHECK_EQ(last.fault_groups, int64_t{8});
  CHECK(std::abs(last.fault_service_ns - 6000) <= 10);  // both clocks drift a little
  int64_t sum_ns = 0;
  for (const um_event& event : device.events()) {
    CHECK(event.duration_ns >= 0 && event.duration_ns <= 2010);
    sum_ns += event.duration_ns;
  }
  CHECK_EQ(sum_ns, last.fault_service_ns);
}

TEST(records_of_other_memory_and_other_times_do_not_count) {
  test::Device device(opened());
  unsigned char* data = device.allocate(kPage);
  std::vector<unsigned char> elsewhere(4096);
  std::vector<FakeCupti::Record> records{record(kFault, elsewhere.data(), 1, 1), record(kFault, data, 1, 1),
                                         record(kFault, data, uint64_t{1} << 60, 1), record(kFault, data, 1, 1),
                                         record(kFault, nullptr, 1, 1)};
  records[3].start -= 3600 * uint64_t{1000000000};
  CHECK_EQ(step_with(device, records).fault_groups, int64_t{1});
  CHECK_EQ(sampling(device).ignored_records, int64_t{4});
  CHECK_EQ(device.events().size(), size_t{1});
}

TEST(without_times_records_count_and_belong_to_no_op) {
  test::Device device(opened());
  unsigned char* data = device.allocate(kPage);
  fake().failing["cuptiGetTimestamp"] = CUPTI_ERROR_UNKNOWN;
  CHECK_OK(um_step_set(device, 1));
  device.op({write(data, 512)}, [&] { fake().add(record(kFault, data, 1, 1)); });
  CHECK_OK(um_step_set(device, 0));
  CHECK_EQ(sampling(device).last.fault_groups, int64_t{1});
  const std::vector<um_event> events = device.events();
  CHECK_EQ(events[0].op_index, 0u);
  CHECK_EQ(events[0].step, 1u);
  CHECK_EQ(events[0].allocation, test::Device::at(data).serial);
}

TEST(which_steps_are_sampled) {
  test::Device device(opened(4));
  unsigned char* data = device.allocate(kPage);
  std::vector<uint32_t> sampled;
  for (uint32_t step = 1; step <= 13; ++step) {
    CHECK_OK(um_step_set(device, step));
    device.op({write(data, 512)});
    if (step == 6) CHECK_OK(um_step_set(device, 0));
    if (sampling(device).last_step != 0 && (sampled.empty() || sampled.back() != sampling(device).last_step)) {
      sampled.push_back(sampling(device).last_step);
    }
  }
  CHECK(sampled == std::vector<uint32_t>({1, 2, 3, 4, 8, 12}));
  CHECK_EQ(sampling(device).steps, int64_t{6});
  CHECK_OK(um_sampling_set(device, 0));
  CHECK_OK(um_step_set(device, 16));
  CHECK_OK(um_step_set(device, 0));
  CHECK_EQ(sampling(device).steps, int64_t{6});
  CHECK(!fake().subscribed);
}

TEST(what_cannot_be_sampled_stays_unknown_with_the_reason) {
  test::Device device(opened());
  device.allocate(kPage);
  CHECK_EQ(device.counters().fault_groups, int64_t{UM_UNKNOWN});
  fake().failing["cuptiSubscribe"] = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  CHECK_OK(um_step_set(device, 1));
  CHECK_OK(um_step_set(device, 0));
  um_sampling sampled = sampling(device);
  CHECK_EQ(sampled.steps, int64_t{0});
  CHECK_EQ(sampled.failed_steps, int64_t{1});
  CHECK(std::string(sampled.reason).find("another profiler is active") != std::string::npos);
  CHECK_EQ(sampled.last.fault_groups, int64_t{UM_UNKNOWN});
  CHECK_EQ(device.counters().fault_groups, int64_t{UM_UNKNOWN});
  CHECK(device.events().empty());

  fake().reset();  // the profiler is gone
  CHECK_OK(um_step_set(device, 2));
  CHECK_OK(um_step_set(device, 0));
  sampled = sampling(device);
  CHECK_EQ(sampled.steps, int64_t{1});
  CHECK_EQ(sampled.last_step, 2u);
  CHECK_EQ(std::string(sampled.reason), std::string());
  CHECK_EQ(device.counters().fault_groups, int64_t{0});
}

TEST(a_step_with_lost_records_is_not_known) {
  test::Device device(opened());
  unsigned char* data = device.allocate(kPage);
  CHECK_OK(um_step_set(device, 1));
  fake().add(record(kFault, data, 1, 1));
  fake().dropped = 1;
  CHECK_OK(um_step_set(device, 0));
  CHECK_EQ(sampling(device).failed_steps, int64_t{1});
  CHECK_EQ(std::string(sampling(device).reason), std::string("CUPTI dropped 1 records for lack of buffers"));
  CHECK_EQ(device.counters().fault_groups, int64_t{UM_UNKNOWN});
  CHECK(device.events().empty());
}

TEST(one_device_at_a_time) {
  test::Device first(opened()), second(opened());
  first.allocate(kPage);
  second.allocate(kPage);
  CHECK_OK(um_step_set(first, 1));
  CHECK_OK(um_step_set(second, 1));
  CHECK_OK(um_step_set(second, 0));
  CHECK_OK(um_step_set(first, 0));
  CHECK_EQ(std::string(sampling(second).reason), std::string("another device of this process is being sampled"));
  CHECK_EQ(sampling(first).steps, int64_t{1});
}

TEST(a_device_that_closes_in_the_middle_of_a_step_leaves_nothing_behind) {
  {
    test::Device device(opened());
    device.allocate(kPage);
    CHECK_OK(um_step_set(device, 1));
    CHECK(fake().subscribed);
  }
  CHECK(!fake().subscribed);
  CHECK(!fake().enabled);
}

TEST(without_events_only_counters_are_kept) {
  test::Device device(opened());
  um_events_enable(device, 0);
  unsigned char* data = device.allocate(kPage);
  std::vector<FakeCupti::Record> records;
  records.push_back(record(kFault, data, 1, 1));
  records.push_back(record(kToHost, data, 512, CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_EVICTION));
  records.push_back(record(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_REMOTE_MAP, data, 512, 1));
  CHECK_EQ(step_with(device, records).fault_groups, int64_t{1});
  CHECK(device.events().empty());
}

TEST(a_step_is_counted_from_its_first_managed_memory_on) {
  for (const uint32_t memory : {UM_MEMORY_MANAGED, UM_MEMORY_PREFER_DEVICE}) {
    test::Device device(opened());
    CHECK_OK(um_step_set(device, 1));
    CHECK(!fake().subscribed);
    if (memory == UM_MEMORY_PREFER_DEVICE)
      emulated_libcuda_fails("cuMemAlloc", um::driver::CUDA_ERROR_OUT_OF_MEMORY, 1, 1);
    unsigned char* data = nullptr;
    const um::Counters before = totals().model;
    device.op(
        {},
        [&] {
          data = device.allocate(4 * kPage, um_placement{memory, UM_ROLE_PARAMETER, UM_ADVICE_NONE});
          std::memset(data, 1, 4 * kPage);
        },
        "first");
    device.op({write(device.allocate(kPage), kPage)}, [] {}, "second");
    CHECK_OK(um_step_set(device, 0));
    CHECK_EQ(std::string(sampling(device).reason), std::string());
    CHECK_EQ(sampling(device).steps, int64_t{1});
    CHECK_EQ(sampling(device).last.fault_groups, totals().model.fault_groups - before.fault_groups);
    int faults = 0;
    for (const um_event& event : device.events()) {
      if (event.kind != UM_EVENT_FAULT_GROUP || event.address - reinterpret_cast<uint64_t>(data) >= 4 * kPage) continue;
      CHECK_EQ(std::string(um_string(event.op)), std::string("first"));
      ++faults;
    }
    CHECK_EQ(faults, 4);
  }
}

TEST(without_managed_memory_nothing_faults_and_cupti_is_left_alone) {
  test::Device device(opened());
  fake().failing["cuptiSubscribe"] = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;  // nobody asks
  unsigned char* data = device.allocate(kPage, um_placement{UM_MEMORY_DEVICE, UM_ROLE_PARAMETER, UM_ADVICE_NONE});
  CHECK_OK(um_step_set(device, 1));
  device.op({write(data, 512)});
  CHECK_OK(um_step_set(device, 2));
  CHECK_EQ(sampling(device).steps, int64_t{1});
  CHECK_EQ(std::string(sampling(device).reason), std::string());
  CHECK_EQ(sampling(device).last.fault_groups, int64_t{0});
  CHECK_EQ(device.counters().fault_service_ns, int64_t{0});

  device.free(device.allocate(kPage));  // managed, if not for long
  CHECK_OK(um_step_set(device, 0));
  CHECK_EQ(sampling(device).steps, int64_t{1});
  CHECK(std::string(sampling(device).reason).find("another profiler") != std::string::npos);
  device.allocate(kPage);
  CHECK_OK(um_step_set(device, 3));
  CHECK_OK(um_step_set(device, 0));
  CHECK(std::string(sampling(device).reason).find("another profiler") != std::string::npos);
  CHECK_EQ(sampling(device).failed_steps, int64_t{2});
}

TEST(the_emulated_device_is_not_sampled) {
  test::Device device(32 * kMiB);
  CHECK_FAILS(UM_UNSUPPORTED, um_sampling_set(device, 1));
  const um_sampling sampled = sampling(device);
  CHECK_EQ(sampled.every, 0u);
  CHECK_EQ(sampled.last.fault_groups, int64_t{UM_UNKNOWN});
}
