// The C ABI as a caller meets it: codes and messages for every kind of misuse, lives of devices, routes, labels, forks.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "engine/routes.h"
#include "engine_fixture.h"

using test::Device;
using test::kIntermediate;
using test::kMiB;
using test::kPage;
using test::kParameter;
using test::kPlain;

namespace {

bool says(const char* part) { return std::strstr(um_last_error(), part) != nullptr; }

um_status open_with(um_emulated_options options) {
  um_device* device = nullptr;
  const um_status status = um_device_open_emulated(&options, &device);
  if (status == UM_OK) CHECK_OK(um_device_close(device));
  return status;
}

}  // namespace

TEST(names_are_interned_once) {
  CHECK_EQ(um_abi_version(), UM_ABI_VERSION);
  const uint32_t first = um_intern("aten::addmm"), second = um_intern("aten::mul");
  CHECK(first != 0 && second != 0 && first != second);
  CHECK_EQ(um_intern(std::string("aten::addmm").c_str()), first);
  CHECK_EQ(std::string(um_string(first)), "aten::addmm");
  const char* text = um_string(second);
  for (int i = 0; i < 5000; ++i) um_intern(std::to_string(i).c_str());
  CHECK(um_string(second) == text);
  CHECK_EQ(um_intern(""), 0u);
  CHECK_EQ(um_intern(nullptr), 0u);
  CHECK_EQ(std::string(um_string(0)), "");
  CHECK_EQ(std::string(um_string(~0u)), "");
}

TEST(emulated_options_are_checked) {
  CHECK_FAILS(UM_INVALID_ARGUMENT, open_with({4 * kMiB - 1, 0, 0, 0, 0}));
  CHECK(says("capacity") && says("4 MiB"));
  CHECK_OK(open_with({4 * kMiB, 0, 0, 0, 0}));
  CHECK_FAILS(UM_OUT_OF_HOST_MEMORY, open_with({uint64_t{1} << 50, 0, 0, 0, 0}));
  CHECK(says("available"));
  CHECK_FAILS(UM_OUT_OF_HOST_MEMORY, open_with({64 * kMiB, uint64_t{1} << 50, 0, 0, 0}));
  CHECK(says("host_bytes"));
  CHECK_FAILS(UM_INVALID_ARGUMENT, open_with({64 * kMiB, 0, 7, 0, 0}));
  CHECK(says("counting"));
  CHECK_FAILS(UM_INVALID_ARGUMENT, open_with({64 * kMiB, 0, 0, 2000000, 0}));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_device_open_emulated(nullptr, nullptr));
  um_device* device = nullptr;
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_device_open_emulated(nullptr, &device));
}

TEST(null_arguments_are_refused) {
  Device device(16 * kMiB);
  void* address = nullptr;
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_allocate(nullptr, 1, &kIntermediate, nullptr, &address));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_allocate(device, 1, nullptr, nullptr, &address));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_allocate(device, 1, &kIntermediate, nullptr, nullptr));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_op_begin(device, 0, 0, 0, 0, nullptr, 1));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_counters_read(device, nullptr));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_memory_read(device, nullptr));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_device_query(device, nullptr));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_allocation_at(nullptr, nullptr));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_device_close(nullptr));
  um_op_end(nullptr, nullptr, 0);
  CHECK_EQ(um_events_drain(nullptr, nullptr, 0), uint64_t{0});
  CHECK_EQ(um_allocations(nullptr, nullptr, 0), uint64_t{0});
}

TEST(a_device_describes_itself) {
  Device device(64 * kMiB + 12345);
  um_device_info info{};
  CHECK_OK(um_device_query(device, &info));
  CHECK_EQ(std::string(info.provider), "emulated");
  CHECK_EQ(info.total_bytes, 64 * kMiB);
  CHECK_EQ(info.free_bytes, 64 * kMiB);
  CHECK_EQ(info.concurrent_managed, 1);
  CHECK_EQ(info.counting, uint32_t{UM_COUNTING_ORDERED});
  CHECK_EQ(info.live_allocations, 0u);
  device.allocate(100);
  CHECK_OK(um_device_query(device, &info));
  CHECK_EQ(info.live_allocations, 1u);
  std::vector<std::string> functions;
  const char* reason = nullptr;
  while (const char* name = um_driver_function(device, static_cast<uint32_t>(functions.size()), &reason)) {
    CHECK(std::find(functions.begin(), functions.end(), name) == functions.end());
    functions.push_back(name);
  }
  CHECK(std::find(functions.begin(), functions.end(), "cuMemAllocManaged") != functions.end());
}

TEST(bad_placements_and_sizes) {
  Device device(16 * kMiB);
  void* address = &device;
  for (const um_placement& bad : {um_placement{4, 0, 0}, um_placement{0, 3, 0}, um_placement{0, 0, 5}}) {
    CHECK_FAILS(UM_INVALID_ARGUMENT, um_allocate(device, 1, &bad, nullptr, &address));
    CHECK(address == nullptr);
    CHECK(says("placement"));
  }
  CHECK_OK(um_allocate(device, 0, &kIntermediate, nullptr, &address));
  CHECK(address == nullptr);
  for (const uint64_t bytes : {~uint64_t{0}, uint64_t{1} << 50}) {
    CHECK_FAILS(UM_OUT_OF_HOST_MEMORY, um_allocate(device, bytes, &kIntermediate, nullptr, &address));
  }
  CHECK_EQ(device.memory().reserved_bytes, uint64_t{0});
}

TEST(plain_memory_runs_out_with_a_diagnosis) {
  Device device(64 * kMiB);
  device.allocate(40 * kMiB, kPlain);
  void* address = nullptr;
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device, 30 * kMiB, &kPlain, nullptr, &address));
  for (const char* part : {"30 MiB", "40 MiB", "64 MiB", "unified memory", "budget"}) CHECK(says(part));
  device.allocate(24 * kMiB, kPlain);  // exactly what is left
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device, 1, &kPlain, nullptr, &address));
  CHECK_EQ(device.memory().resident_bytes, 64 * kMiB);
}

TEST(memory_that_another_role_keeps_unused_is_given_back_in_need) {
  Device device(64 * kMiB);
  const um_placement other{UM_MEMORY_DEVICE, UM_ROLE_INPUT, UM_ADVICE_NONE};
  device.free(device.allocate(40 * kMiB, other));
  CHECK_EQ(device.memory().reserved_bytes, 40 * kMiB);
  device.allocate(60 * kMiB, kPlain);
  CHECK_EQ(device.memory().reserved_bytes, 60 * kMiB);
}

TEST(memory_that_prefers_the_device_becomes_managed_when_that_is_full) {
  Device device(8 * kPage);
  const um_placement preferred{UM_MEMORY_PREFER_DEVICE, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
  unsigned char* first = device.allocate(6 * kPage, preferred);
  CHECK_EQ(Device::at(first).memory, uint32_t{UM_MEMORY_DEVICE});
  CHECK_EQ(Device::at(device.allocate(4 * kPage, preferred)).memory, uint32_t{UM_MEMORY_MANAGED});
  const uint64_t tries = um_emulated_calls(device, "cuMemAlloc");
  CHECK_EQ(Device::at(device.allocate(4 * kPage, preferred)).memory, uint32_t{UM_MEMORY_MANAGED});
  CHECK_EQ(um_emulated_calls(device, "cuMemAlloc"), tries);  // refused already
  CHECK_EQ(Device::at(device.allocate(kPage, preferred)).memory, uint32_t{UM_MEMORY_DEVICE});
  device.free(first);
  CHECK_EQ(Device::at(device.allocate(4 * kPage, preferred)).memory, uint32_t{UM_MEMORY_DEVICE});
}

TEST(managed_memory_beyond_the_host_is_refused_by_name) {
  Device device(16 * kMiB, UM_COUNTING_ORDERED, 64 * kMiB);
  void* address = nullptr;
  CHECK_FAILS(UM_OUT_OF_HOST_MEMORY, um_allocate(device, 100 * kMiB, &kIntermediate, nullptr, &address));
  CHECK(says("100 MiB"));
  device.allocate(64 * kMiB);
  CHECK_FAILS(UM_OUT_OF_HOST_MEMORY, um_allocate(device, 1, &kParameter, nullptr, &address));
}

TEST(foreign_pointers_are_left_alone) {
  Device device(16 * kMiB);
  unsigned char* ours = device.allocate(1000);
  int foreign = 0;
  for (void* pointer :
       {static_cast<void*>(&foreign), static_cast<void*>(nullptr), reinterpret_cast<void*>(~uintptr_t{0})}) {
    CHECK_EQ(um_owns(pointer), 0);
    CHECK_EQ(um_free(pointer), 0);
  }
  um_allocation found{};
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_allocation_at(&foreign, &found));
  CHECK_EQ(um_owns(ours + 999), 1);
  CHECK_EQ(um_free(ours + 1), 0);  // inside, not at the start
  CHECK_EQ(device.memory().live_allocations, uint64_t{1});
}

TEST(a_closed_device_goes_with_its_last_allocation) {
  um_device* handle = nullptr;
  const um_emulated_options options{16 * kMiB, 64 * kMiB, 0, 0, 0};
  CHECK_OK(um_device_open_emulated(&options, &handle));
  void* address = nullptr;
  CHECK_OK(um_allocate(handle, 6 * kMiB, &kIntermediate, nullptr, &address));
  std::memset(address, 7, 6 * kMiB);
  CHECK_OK(um_device_close(handle));
  CHECK_FAILS(UM_BAD_STATE, um_device_close(handle));
  void* other = nullptr;
  CHECK_FAILS(UM_BAD_STATE, um_allocate(handle, 1, &kIntermediate, nullptr, &other));
  CHECK(says("closed"));
  CHECK(test::holds(static_cast<unsigned char*>(address), 7, 6 * kMiB));
  um_memory_stats stats{};
  CHECK_OK(um_memory_read(handle, &stats));
  CHECK_EQ(stats.live_allocations, uint64_t{1});
  CHECK_EQ(um_free(address), 1);
  CHECK_EQ(um_owns(address), 0);
  CHECK_FAILS(UM_BAD_STATE, um_memory_read(handle, &stats));
  CHECK_FAILS(UM_BAD_STATE, um_op_begin(handle, 0, 0, 0, 0, nullptr, 0));
  CHECK_EQ(um_allocations(handle, nullptr, 0), uint64_t{0});
}

TEST(devices_are_independent_and_many_may_follow_each_other) {
  Device first(16 * kMiB), second(8 * kMiB);
  unsigned char* a = first.allocate(3 * kMiB);
  unsigned char* b = second.allocate(3 * kMiB);
  std::memset(a, 1, 3 * kMiB);
  std::memset(b, 2, 3 * kMiB);
  CHECK_EQ(first.memory().resident_bytes, 2 * kPage);
  CHECK_EQ(second.memory().resident_bytes, 2 * kPage);
  for (int i = 0; i < 40; ++i) {
    Device short_lived(4 * kMiB);
    std::memset(short_lived.allocate(100), i, 100);
  }
  CHECK(test::holds(a, 1, 3 * kMiB) && test::holds(b, 2, 3 * kMiB));
}

TEST(a_threads_route_wins_over_the_process) {
  Device device(16 * kMiB), other(16 * kMiB);
  void* address = nullptr;
  CHECK(um_route_device() == nullptr);
  CHECK_FAILS(UM_BAD_STATE, um_allocate_routed(10, nullptr, &address));
  const um_placement wanted = test::advised(UM_ADVICE_ACCESSED_BY, UM_ROLE_INPUT);
  const um_route everywhere{UM_ROUTE_ON, wanted, device, 0};
  um_route_set_process(&everywhere);
  um_route got{};
  CHECK(um::current_route(&got));
  CHECK(got.device == device && got.state == UM_ROUTE_ON);
  CHECK_EQ(got.placement.memory, wanted.memory);
  CHECK_EQ(got.placement.role, wanted.role);
  CHECK_EQ(got.placement.advice, wanted.advice);
  std::thread([&] { CHECK(um_route_device() == device.handle); }).join();
  const um_route mine{UM_ROUTE_ON, test::advised(UM_ADVICE_READ_MOSTLY, UM_ROLE_INPUT), other, 0};
  um_route_set_thread(&mine);
  CHECK(um_route_device() == other.handle);
  CHECK_OK(um_allocate_routed(10, nullptr, &address));
  const um_allocation made = Device::at(address);
  CHECK_EQ(made.role, uint32_t{UM_ROLE_INPUT});
  CHECK_EQ(made.advice, uint32_t{UM_ADVICE_READ_MOSTLY});
  CHECK_EQ(other.memory().live_allocations, uint64_t{1});
  CHECK_EQ(um_free(address), 1);
  const um_route off{UM_ROUTE_OFF, {}, nullptr, 0};
  um_route_set_thread(&off);
  CHECK(um_route_device() == nullptr);
  const um_route inherit{};
  um_route_set_thread(&inherit);
  CHECK(um_route_device() == device.handle);
  um_route_get_thread(&got);
  CHECK_EQ(got.state, uint32_t{UM_ROUTE_INHERIT});
  um_route_set_process(&inherit);
  CHECK(um_route_device() == nullptr);
}

TEST(routes_to_a_closed_device_are_off) {
  um_device* handle = nullptr;
  const um_emulated_options options{16 * kMiB, 64 * kMiB, 0, 0, 0};
  CHECK_OK(um_device_open_emulated(&options, &handle));
  const um_route route{UM_ROUTE_ON, kParameter, handle, 0};
  um_route_set_process(&route);
  um_route_set_thread(&route);
  CHECK(um_route_device() == handle);
  CHECK_OK(um_device_close(handle));
  CHECK(um_route_device() == nullptr);
  um_route_set_thread(nullptr);
  CHECK(um_route_device() == nullptr);
}

TEST(allocations_are_listed_by_address_with_their_labels) {
  Device device(64 * kMiB);
  std::vector<const void*> expected;
  for (const um_placement& placement : {kIntermediate, kParameter, test::kInput, kPlain}) {
    for (uint64_t bytes : {uint64_t{100}, 3 * kMiB, uint64_t{513}})
      expected.push_back(device.allocate(bytes, placement));
  }
  const void* weight = expected[4];
  CHECK_OK(um_allocation_label(weight, UM_ROLE_OPTIMIZER_STATE, um_intern("encoder.weight")));
  CHECK_OK(um_allocation_label(static_cast<const char*>(weight) + 5000, UM_ROLE_GRADIENT, 0));
  std::sort(expected.begin(), expected.end());
  CHECK_EQ(um_allocations(device, nullptr, 0), expected.size());
  std::vector<um_allocation> listed(expected.size() + 3);
  CHECK_EQ(um_allocations(device, listed.data(), listed.size()), expected.size());
  std::vector<uint64_t> serials;
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK_EQ(listed[i].address, reinterpret_cast<uint64_t>(expected[i]));
    CHECK(listed[i].reserved_bytes >= listed[i].bytes && listed[i].reserved_bytes < listed[i].bytes + 512);
    serials.push_back(listed[i].serial);
    const bool labelled = expected[i] == weight;
    CHECK_EQ(std::string(um_string(listed[i].name)), labelled ? "encoder.weight" : "");
    if (labelled) CHECK_EQ(listed[i].role, uint32_t{UM_ROLE_GRADIENT});
  }
  std::sort(serials.begin(), serials.end());
  for (size_t i = 0; i < serials.size(); ++i) CHECK_EQ(serials[i], i + 1);
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_allocation_label(weight, UM_ROLE_COUNT, 0));
}

TEST(copies_and_prefetches_stay_inside_their_allocation) {
  Device device(16 * kMiB);
  unsigned char* data = device.allocate(5 * kMiB);
  std::vector<unsigned char> host(5 * kMiB, 3), back(5 * kMiB);
  CHECK_OK(um_copy_from_host(data, host.data(), host.size()));
  CHECK_OK(um_prefetch(data, 5 * kMiB, 1, nullptr));
  CHECK_EQ(device.memory().resident_bytes, uint64_t{0});
  CHECK_OK(um_copy_to_host(back.data(), data, back.size()));
  CHECK(back == host);
  CHECK_OK(um_prefetch(data, 5 * kMiB, 0, nullptr));
  CHECK_EQ(device.memory().resident_bytes, 3 * kPage);
  CHECK_OK(um_copy_from_host(nullptr, nullptr, 0));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_copy_from_host(data + 1, host.data(), host.size()));
  CHECK(says("within"));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_copy_to_host(host.data(), data, ~uint64_t{0}));
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_copy_from_host(host.data(), host.data(), 1));
  unsigned char* plain = device.allocate(100, kPlain);
  CHECK_OK(um_copy_from_host(plain, host.data(), 100));
  CHECK_FAILS(UM_UNSUPPORTED, um_prefetch(plain, 100, 1, nullptr));
}

TEST(exports_keep_memory_in_place_until_they_are_released) {
  Device device(8 * kMiB);
  unsigned char* data = device.allocate(4 * kMiB);
  std::memset(data, 9, 4 * kMiB);
  CHECK_OK(um_prefetch(data, 4 * kMiB, 1, nullptr));
  CHECK_OK(um_export(data + 100, nullptr));
  CHECK_OK(um_export(data, nullptr));
  CHECK_EQ(Device::at(data).exports, 2u);
  unsigned char* other = device.allocate(8 * kMiB);
  std::memset(other, 1, 8 * kMiB);  // takes turns in the other half
  int ends[2];
  CHECK_EQ(pipe(ends), 0);
  for (const unsigned char* from : {data, data + 4 * kMiB - 1000}) {  // the kernel reads it where it is
    CHECK_EQ(::write(ends[1], from, 1000), ssize_t{1000});
    unsigned char got[1000];
    CHECK_EQ(::read(ends[0], got, 1000), ssize_t{1000});
    CHECK(test::holds(got, 9, 1000));
  }
  close(ends[0]);
  close(ends[1]);
  CHECK_FAILS(UM_BAD_STATE, um_prefetch(data, 1, 1, nullptr));
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_export(other, nullptr));
  CHECK(says("8 MiB"));
  CHECK_OK(um_export_release(data));
  CHECK_OK(um_export_release(data));
  CHECK_FAILS(UM_BAD_STATE, um_export_release(data));
  CHECK_OK(um_export(other, nullptr));
  device.free(other);  // unpins
  CHECK_OK(um_export(data, nullptr));
  unsigned char* plain = device.allocate(100, kPlain);
  CHECK_OK(um_export(plain, nullptr));
  CHECK_OK(um_export_release(plain));
}

TEST(an_export_stays_where_it_is_when_what_shares_its_page_is_sent_away) {
  Device device(8 * kMiB);
  CHECK_OK(um_budget_set(device, 8 * kMiB));
  unsigned char* exported = device.allocate(1000);
  unsigned char* beside = device.allocate(1000);
  std::memset(exported, 9, 1000);
  CHECK_OK(um_export(exported, nullptr));
  CHECK_OK(um_prefetch(beside, 1000, 1, nullptr));
  int ends[2];
  CHECK_EQ(pipe(ends), 0);
  CHECK_EQ(::write(ends[1], exported, 1000), ssize_t{1000});
  close(ends[0]);
  close(ends[1]);
  CHECK_OK(um_export_release(exported));
  CHECK_OK(um_prefetch(beside, 1000, 1, nullptr));
  CHECK_EQ(device.memory().host_bytes, 2 * kMiB);
}

TEST(a_forked_child_frees_nothing_and_is_told_why_the_rest_fails) {
  Device device(16 * kMiB);
  const um_route route{UM_ROUTE_ON, kParameter, device, 0};
  um_route_set_process(&route);
  unsigned char* data = device.allocate(1000);
  data[0] = 5;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    void* address = nullptr;
    um_memory_stats stats{};
    const um_emulated_options options{16 * kMiB, 0, 0, 0, 0};
    um_device* another = nullptr;
    const bool good = um_free(data) == 1 && um_owns(data) == 1 && um_route_device() == nullptr &&
                      um_free(&stats) == 0 && um_allocate(device, 1, &kParameter, nullptr, &address) == UM_BAD_STATE &&
                      says("spawn") && um_memory_read(device, &stats) == UM_BAD_STATE &&
                      um_device_open_emulated(&options, &another) == UM_BAD_STATE;
    um_op_end(device, nullptr, 0);
    _exit(good ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(device.memory().live_allocations, uint64_t{1});
  CHECK_EQ(data[0], 5);
  um_route_set_process(nullptr);
}

TEST(cuda_says_why_it_is_not_there) {
  um_device* device = nullptr;
  const char* reason = um_cuda_unavailable_reason();
  if (reason == nullptr) return;  // a machine with a GPU: the gpu-marked tests open it
  CHECK(reason[0] != '\0');
  CHECK_FAILS(UM_UNSUPPORTED, um_device_open_cuda(0, &device));
  CHECK(says(reason));
}
