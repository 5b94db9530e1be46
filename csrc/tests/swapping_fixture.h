// An emulated device with chunks, and steps that use its blocks in turn.
#pragma once

#include <vector>

#include "engine_fixture.h"
#include "swap_fixture.h"

namespace test {

inline constexpr uint64_t kChunk = 2 * kMiB;
inline constexpr um_placement kChunked{UM_MEMORY_CHUNKED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

struct Swapping : Device {
  explicit Swapping(uint64_t budget_chunks, uint64_t host_budget_bytes = 0, uint32_t delay_max_us = 0)
      : Device(open(delay_max_us)) {
    set_budget(budget_chunks, host_budget_bytes);
  }
  Swapping(um_device* opened, uint64_t budget_chunks) : Device(opened) { set_budget(budget_chunks); }
  static um_device* open(uint32_t delay_max_us) {
    const um_emulated_options options{64 * kMiB, 1024 * kMiB, UM_COUNTING_ORDERED, delay_max_us, check::seed(7)};
    um_device* device = nullptr;
    CHECK_OK(um_device_open_emulated(&options, &device));
    return device;
  }
  static um_device* open_in_virtual_time(const um_driver_costs& costs = {}) {
    um_device* const device = open(0);
    const um_link link = fixture::plain_link();
    CHECK_OK(um_emulated_set_clock(device, &link, &costs));
    return device;
  }
  void set_budget(uint64_t chunks, uint64_t host_budget_bytes = 0) {
    const um_chunk_options options{chunks * kChunk, host_budget_bytes, kChunk, 0, 0};
    CHECK_OK(um_chunks_set(handle, &options));
  }
  test::Moving chunks(uint64_t count) { return allocate(count * kChunk, kChunked); }
  um_swap_counters swaps() const {
    um_swap_counters out{};
    CHECK_OK(um_swap_read(handle, &out));
    return out;
  }
  void fill(const test::Moving& block, uint64_t bytes, unsigned char value, const char* name = "fill") {
    op({write(block, bytes)}, [&] { std::memset(block, value, bytes); }, name);
  }
  void expect(const test::Moving& block, uint64_t bytes, unsigned char value, const char* name = "expect") {
    op({read(block, bytes)}, [&] { CHECK(test::holds(block, value, bytes)); }, name);
  }
};

// Four storages of one chunk that are there before the step; op i reads storage i.
struct Rounds {
  fixture::Trace trace;
  std::vector<uint32_t> names;
  std::vector<uint64_t> serials;
  std::vector<test::Moving> blocks;

  explicit Rounds(Swapping& device, int count = 4) {
    for (int i = 0; i < count; ++i) {
      blocks.push_back(device.chunks(1));
      device.fill(blocks.back(), kChunk, static_cast<unsigned char>(i + 1));
      serials.push_back(Device::at(blocks.back()).serial);
      trace.allocate(kChunk);
    }
    for (int i = 0; i < count; ++i) {
      trace.use(1000, {i});
      names.push_back(um_intern("expect"));
    }
  }
  // `told`: the storages are the same ones in every step, so that ops are told by them.
  void set(Swapping& device, const um_plan* plan, bool told = false) const {
    const std::vector<uint8_t> states(serials.size(), told);
    const um_trace columns = trace.columns();
    CHECK_OK(fixture::follow(device, columns, plan, names.data(), serials.data(), states.data()));
  }
  void run(Swapping& device, uint32_t step, const std::vector<int>& order = {0, 1, 2, 3}) const {
    CHECK_OK(um_step_set(device, step));
    for (const int i : order) device.expect(blocks[static_cast<size_t>(i)], kChunk, static_cast<unsigned char>(i + 1));
    CHECK_OK(um_step_set(device, 0));
  }
};

}  // namespace test
