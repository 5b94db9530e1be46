// Any driver call may fail at any time. A scripted session is run once for every driver call in it, with that call made
// to fail: what fails says so, what was there before is still right, nothing is lost, and the same device works
// afterwards.
#include <algorithm>

#include "engine_fixture.h"

using test::advised;
using test::kMiB;
using test::kPage;
using test::read;
using test::write;

namespace {

struct Buffer {
  unsigned char* data;
  uint64_t bytes;
  unsigned char value;
};

class Session {
 public:
  explicit Session(um_device* device) : device_(device) {}

  void run() {
    check(um_step_set(device_, 1));
    for (const um_advice advice : {UM_ADVICE_NONE, UM_ADVICE_PREFERRED_LOCATION, UM_ADVICE_ACCESSED_BY,
                                   UM_ADVICE_READ_MOSTLY, UM_ADVICE_PREFETCH}) {
      allocate(kPage + 100, advised(advice));
    }
    allocate(kPage, test::kPlain);
    allocate(66 * kMiB, test::kIntermediate);  // an arena of its own, given back with it
    work();
    release(6);
    check(um_budget_set(device_, 4 * kPage));
    work();
    doors();
    release(0);
    allocate(3 * kPage, test::kInput);
    work();
    check(um_budget_set(device_, 0));
    um_device_info info{};
    check(um_device_query(device_, &info));
    while (!buffers.empty()) release(0);
  }

  void verify() const {
    for (const Buffer& buffer : buffers) CHECK(test::holds(buffer.data, buffer.value, buffer.bytes));
  }

  std::vector<Buffer> buffers;
  std::vector<const void*> ever;
  std::string last_message;

 private:
  bool check(um_status status) {
    if (status == UM_OK) return true;
    last_message = um_last_error();
    CHECK(um_last_error()[0] != '\0');
    return false;
  }

  void allocate(uint64_t bytes, const um_placement& placement) {
    void* address = nullptr;
    if (!check(um_allocate(device_, bytes, &placement, nullptr, &address))) {
      CHECK(address == nullptr);
      return;
    }
    ever.push_back(address);
    const auto value = static_cast<unsigned char>(ever.size());
    const uint64_t used_bytes = std::min(bytes, 2 * kPage);
    std::memset(address, value, used_bytes);
    buffers.push_back({static_cast<unsigned char*>(address), used_bytes, value});
  }

  void release(size_t index) {
    if (index >= buffers.size()) return;
    CHECK_EQ(um_free(buffers[index].data), 1);
    buffers.erase(buffers.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // An op on each buffer that allocates, reads, writes and frees.
  void work() {
    for (Buffer& buffer : buffers) {
      const um_access accesses[] = {write(buffer.data, buffer.bytes), read(buffers[0].data, 100)};
      if (!check(um_op_begin(device_, um_intern("op"), 1, 0, 0, accesses, 2))) continue;
      void* scratch = nullptr;
      const um_placement placement = test::kIntermediate;
      if (check(um_allocate(device_, 100, &placement, nullptr, &scratch))) {
        std::memcpy(scratch, buffer.data, 100);
        CHECK_EQ(um_free(scratch), 1);
      }
      const um_shown output{buffer.data, nullptr};
      um_op_end(device_, &output, 1);
    }
    verify();
  }

  void doors() {
    for (Buffer& buffer : buffers) {
      const bool plain = is_plain(buffer);
      if (!plain) check(um_prefetch(buffer.data, buffer.bytes, 1, nullptr));
      std::vector<unsigned char> host(buffer.bytes, buffer.value), back(buffer.bytes);
      check(um_copy_from_host(buffer.data, host.data(), host.size()));  // the same value: right even when half done
      if (check(um_copy_to_host(back.data(), buffer.data, back.size()))) CHECK(back == host);
      if (check(um_export(buffer.data, nullptr))) CHECK_OK(um_export_release(buffer.data));
      if (!plain) check(um_prefetch(buffer.data, buffer.bytes, 0, nullptr));
    }
    verify();
  }

  static bool is_plain(const Buffer& buffer) {
    um_allocation at{};
    CHECK_OK(um_allocation_at(buffer.data, &at));
    return at.memory == UM_MEMORY_DEVICE;
  }

  um_device* device_;
};

um_device* open_device() {
  const um_emulated_options options{10 * kPage, 1024 * kMiB, UM_COUNTING_ORDERED, 0, 0};
  um_device* device = nullptr;
  CHECK_OK(um_device_open_emulated(&options, &device));
  return device;
}

void check_all_given_back(um_device* device, const Session& session) {
  um_memory_stats stats{};
  CHECK_FAILS(UM_BAD_STATE, um_memory_read(device, &stats));
  for (const void* address : session.ever) CHECK_EQ(um_owns(address), 0);
}

// True when the session was over before its nth driver call.
bool run_with_failure(uint64_t nth) {
  um_device* device = open_device();
  const uint64_t before = um_emulated_calls(device, nullptr);
  CHECK_OK(um_emulated_fail(device, nullptr, nth));
  Session session(device);
  session.run();
  const bool over = um_emulated_calls(device, nullptr) - before < nth;
  if (over) CHECK_EQ(session.last_message, std::string());
  CHECK_OK(um_emulated_fail(device, nullptr, 0));
  um_memory_stats stats{};
  CHECK_OK(um_memory_read(device, &stats));
  CHECK_EQ(stats.live_allocations, uint64_t{0});
  CHECK_EQ(stats.requested_bytes, uint64_t{0});
  for (const uint64_t bytes : stats.requested_by_role) CHECK_EQ(bytes, uint64_t{0});
  Session again(device);
  again.run();
  CHECK_EQ(again.last_message, std::string());
  CHECK_OK(um_device_close(device));
  check_all_given_back(device, session);
  check_all_given_back(device, again);
  return over;
}

}  // namespace

TEST(every_driver_call_of_a_session_may_fail_once) {
  uint64_t nth = 1;
  while (!run_with_failure(nth)) ++nth;
  CHECK(nth > 50);
}

TEST(closing_survives_a_driver_that_refuses_once) {
  for (uint64_t nth = 1; nth < 40; ++nth) {
    um_device* device = open_device();
    Session session(device);
    session.run();
    CHECK_OK(um_emulated_fail(device, nullptr, nth));
    CHECK_OK(um_device_close(device));
    check_all_given_back(device, session);
  }
}

TEST(failures_by_name) {
  um_device* device = open_device();
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_emulated_fail(device, "cuNoSuchThing", 1));
  CHECK_OK(um_emulated_fail(device, "cuMemAdvise", 1));
  void* address = nullptr;
  const um_placement placement = advised(UM_ADVICE_READ_MOSTLY);
  CHECK_FAILS(UM_DRIVER_ERROR, um_allocate(device, 100, &placement, nullptr, &address));
  CHECK(std::strstr(um_last_error(), "advising") != nullptr);
  um_memory_stats stats{};
  CHECK_OK(um_memory_read(device, &stats));
  CHECK_EQ(stats.reserved_bytes, uint64_t{0});
  CHECK_OK(um_allocate(device, 100, &placement, nullptr, &address));
  CHECK_EQ(um_emulated_calls(device, "cuMemAdvise"), uint64_t{2});
  CHECK_EQ(um_free(address), 1);
  CHECK_OK(um_device_close(device));
}
