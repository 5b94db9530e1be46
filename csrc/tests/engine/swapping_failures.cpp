// Chunked memory when something goes wrong, or somebody else is quicker: driver calls that fail, host memory that is
// used up, blocks freed in one thread while another one's op has them. Contents stay right, and nothing is lost.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "swapping_fixture.h"

using test::Device;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::read;
using test::Rounds;
using test::Swapping;
using test::write;

namespace {

constexpr uint64_t kBytes = kMiB + 4096;  // just above what shares a chunk

struct Held {
  test::Moving data;
  unsigned char value;
};

// Steps of a program with random traffic beside it. Every call may be refused; then nothing has changed.
class Session {
 public:
  explicit Session(um_device* device) : device_(device) {}

  void run() {
    std::mt19937 random(5);
    for (int i = 0; i < 4; ++i) make();
    follow();
    for (uint32_t step = 1; step < 4; ++step) {
      check(um_step_set(device_, step));
      for (size_t i = 0; i < std::min<size_t>(4, blocks.size()); ++i) use(blocks[i], false);
      for (int turn = 0; turn < 6; ++turn) something(random);
      if (step == 2) budget(2);
      check(um_step_set(device_, 0));
    }
    budget(3);
  }
  void verify() {
    for (Held& each : blocks) use(each, false);
  }
  // Nothing is held on the device by what was refused: all of it can be somebody else's.
  void leave() {
    std::vector<unsigned char> host(kBytes);
    for (const Held& each : blocks) {
      CHECK_OK(um_prefetch(each.data, kBytes, 1, nullptr));
      CHECK_OK(um_copy_to_host(host.data(), each.data, kBytes));  // when it has left
      CHECK(test::holds(host.data(), each.value, kBytes));
    }
    void* all = nullptr;
    CHECK_OK(um_allocate(device_, 3 * kChunk, &kChunked, nullptr, &all));
    const test::Moving whole = test::moving(all);
    const um_access access = write(whole, 3 * kChunk);
    CHECK_OK(um_op_begin(device_, um_intern("all"), UM_PHASE_FORWARD, 0, 0, &access, 1));
    um_op_end(device_, nullptr, 0);
    CHECK_EQ(um_free(whole), 1);
    um_swap_counters swaps{};
    CHECK_OK(um_swap_read(device_, &swaps));
    CHECK_EQ(swaps.used_bytes, uint64_t{0});
    for (const Held& each : blocks) CHECK(test::holds(each.data, each.value, kBytes));
  }
  void end() {
    for (const Held& each : blocks) CHECK_EQ(um_free(each.data), 1);
    blocks.clear();
  }
  void budget(uint64_t chunks) {
    const um_chunk_options options{chunks * kChunk, 0, kChunk, 0, 0};
    check(um_chunks_set(device_, &options));
  }

  std::vector<Held> blocks;
  std::string last_message;

 private:
  bool check(um_status status) {
    if (status == UM_OK) return true;
    last_message = um_last_error();
    CHECK(!last_message.empty());
    return false;
  }

  void make() {
    void* address = nullptr;
    if (!check(um_allocate(device_, kBytes, &kChunked, nullptr, &address))) return;
    const auto value = static_cast<unsigned char>(++made_);
    const std::vector<unsigned char> contents(kBytes, value);
    if (check(um_copy_from_host(address, contents.data(), kBytes))) {
      blocks.push_back({test::moving(address), value});
    } else {
      CHECK_EQ(um_free(address), 1);
    }
  }

  void use(Held& block, bool writes) {
    const um_access access = writes ? write(block.data, kBytes) : read(block.data, kBytes);
    if (!check(um_op_begin(device_, um_intern("use"), UM_PHASE_FORWARD, 0, 0, &access, 1))) return;
    const bool right = test::holds(block.data, block.value, kBytes);
    if (writes) std::memset(block.data, ++block.value, kBytes);
    void* scratch = nullptr;
    if (writes && check(um_allocate(device_, kBytes, &kChunked, nullptr, &scratch))) {
      std::memset(scratch, 99, kBytes);
      CHECK_EQ(um_free(scratch), 1);
    }
    const um_shown output = shown(block.data);
    um_op_end(device_, &output, 1);
    CHECK(right);
  }

  // In a chunk that stays until somebody needs it, or memory is trimmed.
  void small() {
    constexpr uint64_t kSmall = 1000;
    void* address = nullptr;
    if (!check(um_allocate(device_, kSmall, &kChunked, nullptr, &address))) return;
    const std::vector<unsigned char> contents(kSmall, 77);
    const um_access access = test::read(address, kSmall);
    if (check(um_copy_from_host(address, contents.data(), kSmall)) &&
        check(um_op_begin(device_, um_intern("small"), UM_PHASE_FORWARD, 0, 0, &access, 1))) {
      CHECK(test::holds(static_cast<unsigned char*>(address), 77, kSmall));
      um_op_end(device_, nullptr, 0);
    }
    CHECK_EQ(um_free(address), 1);
    if (++made_ % 2 == 0) check(um_memory_trim(device_));
  }

  void something(std::mt19937& random) {
    if (blocks.empty()) return make();
    Held& block = blocks[random() % blocks.size()];
    std::vector<unsigned char> host(kBytes, block.value);
    switch (random() % 9) {
      case 0:
        return make();
      case 1:
        check(um_prefetch(block.data, kBytes, 1, nullptr));
        return use(block, true);  // a departure that is cancelled
      case 2:
        check(um_prefetch(block.data, kBytes, random() % 2, nullptr));
        return;
      case 3:
        check(um_copy_from_host(block.data, host.data(), kBytes));  // the same: right even when half done
        return;
      case 4:
        if (check(um_copy_to_host(host.data(), block.data, kBytes)))
          CHECK(test::holds(host.data(), block.value, kBytes));
        return;
      case 5:
        if (check(um_export(block.data, nullptr))) {
          CHECK(test::holds(block.data, block.value, kBytes));
          CHECK_OK(um_export_release(block.data));
        }
        return;
      case 7:
        return small();
      case 6:
        if (blocks.size() < 6) return;
        CHECK_EQ(um_free(block.data), 1);
        blocks.erase(blocks.begin() + (&block - blocks.data()));
        return;
      default:
        return use(block, true);
    }
  }

  // While one of the first four is used the next one comes, and it leaves afterwards.
  void follow() {
    if (blocks.size() < 4) return;
    fixture::Trace trace;
    std::vector<uint64_t> serials;
    for (int i = 0; i < 4; ++i) {
      serials.push_back(Device::at(blocks[static_cast<size_t>(i)].data).serial);
      trace.allocate(kBytes);
    }
    for (int i = 0; i < 4; ++i) trace.use(1000, {i});
    fixture::Plan plan(trace);
    for (int32_t op = 0; op < 4; ++op) {
      plan.before(op, UM_PLAN_SWAP_IN, (op + 1) % 4);
      plan.behind(op, op % 2 == 0 ? UM_PLAN_SWAP_OUT : UM_PLAN_DROP, op);
    }
    const std::vector<uint32_t> names(4, um_intern("use"));
    const um_trace columns = trace.columns();
    const um_plan rows = plan.columns();
    check(fixture::follow(device_, columns, &rows, names.data(), serials.data()));
  }

  um_device* device_;
  int made_ = 0;
};

void check_levels(um_device* device) {
  CHECK_OK(um_memory_trim(device));
  um_swap_counters swaps{};
  CHECK_OK(um_swap_read(device, &swaps));
  CHECK_EQ(swaps.used_bytes, uint64_t{0});
  CHECK_EQ(swaps.pinned_bytes, uint64_t{0});
  CHECK_EQ(swaps.host_bytes, uint64_t{0});
}

// True when the session was over before its nth driver call.
bool run_with_failure(uint64_t nth) {
  um_owners_set(&test::Moving::owners());
  um_device* device = Swapping::open(0);
  Session session(device);
  session.budget(3);
  const uint64_t before = um_emulated_calls(device, nullptr);
  CHECK_OK(um_emulated_fail(device, nullptr, nth));
  session.run();
  const bool over = um_emulated_calls(device, nullptr) - before < nth;
  if (over) CHECK_EQ(session.last_message, std::string());
  CHECK_OK(um_emulated_fail(device, nullptr, 0));
  session.last_message.clear();
  session.budget(3);
  session.verify();
  CHECK_EQ(session.last_message, std::string());
  session.leave();
  session.end();
  check_levels(device);
  CHECK_OK(um_device_close(device));
  um_swap_counters swaps{};
  CHECK_FAILS(UM_BAD_STATE, um_swap_read(device, &swaps));
  return over;
}

}  // namespace

TEST(every_driver_call_of_swapping_may_fail_once) {
  uint64_t nth = 1;
  while (!run_with_failure(nth)) ++nth;
  CHECK(nth > 100);
}

TEST(a_block_freed_by_another_thread_is_no_longer_the_ops) {
  Swapping device(4);
  test::Moving mine = device.chunks(1);
  test::Moving other = nullptr;
  device.op({write(mine, kChunk)}, [&] {
    std::thread([&] {
      device.free(mine);
      other = device.chunks(1);
      device.fill(other, kChunk, 3);
    }).join();
  });
  test::Moving all = device.chunks(4);
  device.fill(all, 4 * kChunk, 5);  // nobody holds it on the device
  device.expect(other, kChunk, 3);
}

// Two threads use blocks of each other under a budget for few of them, and free what the other one made.
TEST(two_threads_swap_beside_each_other) {
  Swapping device(4, 0, 100);
  std::mutex mutex;
  std::vector<Held> shared;
  std::atomic<int> wrong{0};
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int turn = 0; turn < 150; ++turn) {
      Held held{nullptr, static_cast<unsigned char>(random())};
      {
        const std::lock_guard<std::mutex> lock(mutex);
        if (shared.size() >= 8) {
          std::swap(shared[random() % shared.size()], shared.back());
          held = shared.back();
          shared.pop_back();
        }
      }
      const bool fresh = held.data == nullptr;
      void* address = held.data;
      if (fresh && um_allocate(device, kBytes, &kChunked, nullptr, &address) != UM_OK) ++wrong;
      held.data = static_cast<unsigned char*>(address);
      const um_access access = fresh ? write(address, kBytes) : read(address, kBytes);
      if (um_op_begin(device, um_intern("use"), UM_PHASE_FORWARD, 0, 0, &access, 1) != UM_OK) ++wrong;
      if (fresh) std::memset(address, held.value, kBytes);
      if (!test::holds(held.data, held.value, kBytes)) ++wrong;
      const um_shown output{address, nullptr};
      um_op_end(device, fresh ? &output : nullptr, fresh);
      if (!fresh && random() % 4 == 0) {
        if (um_free(address) != 1) ++wrong;
        continue;
      }
      if (random() % 4 == 0 && um_prefetch(address, kBytes, random() % 2, nullptr) != UM_OK) ++wrong;
      const std::lock_guard<std::mutex> lock(mutex);
      shared.push_back(held);
    }
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  CHECK_EQ(wrong.load(), 0);
  for (const Held& each : shared) {
    device.expect(each.data, kBytes, each.value);
    CHECK_EQ(um_free(each.data), 1);
  }
  check_levels(device);
}

TEST(a_plan_without_host_memory_refuses_no_op) {
  Swapping device(5, kChunk);
  const Rounds rounds(device);
  fixture::Plan plan(rounds.trace);  // all is dirty, and the host has room for one
  for (int32_t op = 0; op < 4; ++op) plan.behind(op, UM_PLAN_SWAP_OUT, op);
  const um_plan columns = plan.columns();
  rounds.set(device, &columns);
  for (uint32_t step = 1; step < 4; ++step) rounds.run(device, step);
  CHECK_EQ(device.swaps().programs_followed, uint64_t{3});
  CHECK(device.swaps().skipped_actions > 0);
}

TEST(a_smaller_budget_takes_no_more_than_it_must) {
  Swapping device(8);
  for (int i = 0; i < 8; ++i) device.fill(device.chunks(1), kChunk, static_cast<unsigned char>(i));
  device.set_budget(5);
  CHECK_EQ(device.swaps().used_bytes, 5 * kChunk);
  CHECK_EQ(device.swaps().evictions, 3);
}
