// Events of explicit swaps: they add up to the counters, and say which op, which allocation and why.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "swapping_fixture.h"

using test::kChunk;
using test::read;
using test::Swapping;
using test::write;

namespace {

std::vector<um_event> drained(um_device* device) {
  std::vector<um_event> events(1 << 16);
  events.resize(um_events_drain(device, events.data(), events.size()));
  return events;
}

// What events say of the counters that they add up to.
um_swap_counters summed(const std::vector<um_event>& events) {
  um_swap_counters sums{};
  for (const um_event& event : events) {
    const auto bytes = static_cast<int64_t>(event.bytes);
    if (event.kind == UM_EVENT_SWAP_IN) {
      ++sums.swap_ins;
      sums.swap_in_bytes += bytes;
      sums.on_demand_swap_ins += event.cause == UM_SWAP_ON_DEMAND;
    } else if (event.kind == UM_EVENT_SWAP_OUT) {
      ++(bytes > 0 ? sums.swap_outs : sums.clean_drops);
      sums.swap_out_bytes += bytes;
      sums.evictions += event.cause == UM_SWAP_FOR_ROOM;
    } else if (event.kind == UM_EVENT_WAIT_COPY) {
      sums.wait_copy_ns += event.duration_ns;
    } else if (event.kind == UM_EVENT_WAIT_ROOM) {
      sums.wait_room_ns += event.duration_ns;
    }
  }
  return sums;
}

void expect_equal(const um_swap_counters& sums, const um_swap_counters& counted) {
  CHECK_EQ(sums.swap_ins, counted.swap_ins);
  CHECK_EQ(sums.swap_outs, counted.swap_outs);
  CHECK_EQ(sums.swap_in_bytes, counted.swap_in_bytes);
  CHECK_EQ(sums.swap_out_bytes, counted.swap_out_bytes);
  CHECK_EQ(sums.on_demand_swap_ins, counted.on_demand_swap_ins);
  CHECK_EQ(sums.evictions, counted.evictions);
  CHECK_EQ(sums.clean_drops, counted.clean_drops);
  CHECK_EQ(sums.wait_copy_ns, counted.wait_copy_ns);
  CHECK_EQ(sums.wait_room_ns, counted.wait_room_ns);
}

}  // namespace

TEST(swaps_of_ops_at_random_add_up_to_the_counters) {
  Swapping device(6);
  um_events_enable(device, 1);
  std::mt19937 random(7);
  std::vector<test::Moving> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(device.chunks(1 + i % 2));
  for (int turn = 0; turn < 400; ++turn) {
    const size_t one = random() % blocks.size();
    const uint64_t bytes = (1 + one % 2) * kChunk;
    test::Moving block = blocks[one];
    if (random() % 2 != 0) {
      device.op({write(block, bytes)}, [&] { block[0] = 1; });
    } else {
      device.op({read(block, bytes)}, [&] { CHECK(block[0] <= 1); });
    }
  }
  const um_swap_counters counted = device.swaps();
  CHECK(counted.swap_ins > 50 && counted.clean_drops > 10 && counted.evictions > 50);
  expect_equal(summed(drained(device)), counted);
}

TEST(an_event_says_which_op_which_allocation_and_why) {
  Swapping device(2);
  test::Moving first = device.chunks(2);
  device.fill(first, 2 * kChunk, 1);
  CHECK_OK(um_allocation_label(first, UM_ROLE_PARAMETER, um_intern("weight")));
  test::Moving second = device.chunks(2);
  um_events_enable(device, 1);
  CHECK_OK(um_step_set(device, 3));
  device.op({write(second, 2 * kChunk)}, [&] { second[0] = 2; }, "takes its place");
  device.op({read(first, 2 * kChunk)}, [&] { CHECK_EQ(int{first[0]}, 1); }, "comes back");
  const std::vector<um_event> events = drained(device);
  const auto find = [&](uint16_t kind, const char* op) {
    const auto fits = [&](const um_event& event) {
      return event.kind == kind && std::string(um_string(event.op)) == op;
    };
    CHECK_EQ(std::count_if(events.begin(), events.end(), fits), 1);
    return *std::find_if(events.begin(), events.end(), fits);
  };
  const um_event left = find(UM_EVENT_SWAP_OUT, "takes its place");
  CHECK_EQ(std::string(um_string(left.name)), "weight");
  CHECK_EQ(left.role, uint32_t{UM_ROLE_PARAMETER});
  CHECK_EQ(left.bytes, 2 * kChunk);
  CHECK_EQ(left.cause, UM_SWAP_FOR_ROOM);
  CHECK_EQ(left.step, uint32_t{3});
  const um_event came = find(UM_EVENT_SWAP_IN, "comes back");
  CHECK_EQ(std::string(um_string(came.name)), "weight");
  CHECK_EQ(came.cause, UM_SWAP_ON_DEMAND);
  CHECK_EQ(came.allocation_bytes, 2 * kChunk);
  CHECK_EQ(came.address, left.address);
}

TEST(nothing_is_told_while_nobody_asks) {
  Swapping device(2);
  test::Moving first = device.chunks(2);
  device.fill(first, 2 * kChunk, 1);
  test::Moving second = device.chunks(2);
  device.fill(second, 2 * kChunk, 1);
  CHECK(device.swaps().swap_outs > 0);
  CHECK(drained(device).empty());
}
