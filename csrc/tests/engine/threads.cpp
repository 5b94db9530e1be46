// Many threads on one device: allocations made in one thread and freed in another, beside everything that looks at
// them. On a driver of ordinary memory, so that ThreadSanitizer can watch.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "engine_fake_driver.h"
#include "engine_fixture.h"

using test::kPage;

namespace {

struct Exchange {
  std::mutex mutex;
  std::vector<void*> blocks;
};

void work(um_device* device, Exchange& exchange, uint64_t seed, std::atomic<bool>& ok) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < 400; ++i) {
    const um_placement placement{UM_MEMORY_MANAGED, static_cast<uint32_t>(random() % 3),
                                 static_cast<uint32_t>(random() % UM_ADVICE_COUNT)};
    const uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 2 * kPage : 4096);
    const bool in_op = random() % 4 == 0;
    if (in_op) ok = um_op_begin(device, 1, 1, 1, random() % 2, nullptr, 0) == UM_OK && ok;
    void* made = nullptr;
    ok = um_allocate(device, bytes, &placement, nullptr, &made) == UM_OK && ok;
    const um_shown output{made, nullptr};
    if (in_op) um_op_end(device, &output, 1);
    um_allocation at{};
    ok = um_allocation_at(static_cast<char*>(made) + bytes / 2, &at) == UM_OK && at.bytes == bytes && ok;
    ok = um_allocation_label(made, UM_ROLE_GRADIENT, 0) == UM_OK && ok;
    void* taken = made;
    {
      const std::lock_guard<std::mutex> lock(exchange.mutex);
      exchange.blocks.push_back(made);
      if (exchange.blocks.size() < 40) continue;
      std::swap(exchange.blocks[random() % exchange.blocks.size()], exchange.blocks.back());
      taken = exchange.blocks.back();
      exchange.blocks.pop_back();
    }
    ok = um_free(taken) == 1 && ok;
  }
}

}  // namespace

TEST(allocations_cross_threads) {
  um_device* device = fake::open();
  um_events_enable(device, 1);
  Exchange exchange;
  std::atomic<bool> ok{true}, done{false};
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] { work(device, exchange, seed, ok); });
  }
  std::thread observer([&] {
    std::vector<um_allocation> listed(100);
    std::vector<um_event> events(100);
    um_memory_stats stats{};
    um_counters counters{};
    int local = 0;
    while (!done) {
      um_allocations(device, listed.data(), listed.size());
      um_events_drain(device, events.data(), events.size());
      ok = um_memory_read(device, &stats) == UM_OK && um_counters_read(device, &counters) == UM_OK && ok;
      ok = um_owns(&local) == 0 && um_free(&local) == 0 && ok;
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  observer.join();
  CHECK(ok);
  um_memory_stats stats{};
  CHECK_OK(um_memory_read(device, &stats));
  CHECK_EQ(stats.live_allocations, exchange.blocks.size());
  CHECK_EQ(stats.allocation_count, uint64_t{1600});
  uint64_t requested = 0;
  for (void* block : exchange.blocks) {
    um_allocation at{};
    CHECK_OK(um_allocation_at(block, &at));
    requested += at.bytes;
  }
  CHECK_EQ(stats.requested_bytes, requested);
  CHECK_EQ(stats.requested_by_role[UM_ROLE_GRADIENT], requested);
  for (void* block : exchange.blocks) CHECK_EQ(um_free(block), 1);
  CHECK_OK(um_memory_read(device, &stats));
  CHECK_EQ(stats.requested_bytes, uint64_t{0});
  CHECK_OK(um_device_close(device));
  CHECK(fake::state.ranges.empty());
}

TEST(a_device_is_closed_while_others_still_free) {
  for (int round = 0; round < 20; ++round) {
    um_device* device = fake::open();
    const um_route route{UM_ROUTE_ON, test::kParameter, device, 0};
    um_route_set_process(&route);
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 200; ++n) {
          void* block = nullptr;
          const um_status status = um_allocate_routed(3000, nullptr, &block);
          if (status == UM_OK && um_free(block) != 1) ++failures;
          if (status != UM_OK && status != UM_BAD_STATE) ++failures;
        }
      });
    }
    CHECK_OK(um_device_close(device));
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(failures.load(), 0);
    um_memory_stats stats{};
    CHECK_FAILS(UM_BAD_STATE, um_memory_read(device, &stats));
    CHECK(um_route_device() == nullptr);
  }
}
