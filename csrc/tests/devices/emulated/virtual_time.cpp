// An emulated device in virtual time: what copies, waits and ops take is known to the nanosecond.
#include "devices/emulated/virtual_time.h"

#include "swapping_fixture.h"

using test::kChunk;
using test::kMiB;
using test::Swapping;

namespace {

constexpr int64_t kCopy = kChunk;  // a byte takes a nanosecond
const um_driver_costs kCosts = [] {
  um_driver_costs costs{};
  costs.fault_ns = 1000;
  costs.migrate_ns = 200;
  costs.zero_ns = 30;
  costs.evict_ns = 4;
  return costs;
}();

}  // namespace

TEST(ops_wait_as_long_as_copies_take) {
  Swapping device(Swapping::open_in_virtual_time(kCosts), 2);
  const test::Moving a = device.chunks(1), b = device.chunks(1), c = device.chunks(1);
  device.fill(a, kChunk, 1);  // each comes from the host, where it was made
  device.fill(b, kChunk, 2);
  CHECK_EQ(device.swaps().wait_copy_ns, 2 * kCopy);
  CHECK_EQ(device.swaps().wait_room_ns, 0);
  device.fill(c, kChunk, 3);  // when `a` has left
  CHECK_EQ(device.swaps().wait_copy_ns, 3 * kCopy);
  CHECK_EQ(device.swaps().wait_room_ns, kCopy);
  device.expect(a, kChunk, 1);
  device.expect(b, kChunk, 2);
}

TEST(an_op_takes_what_it_is_told_and_copies_go_on_meanwhile) {
  Swapping device(Swapping::open_in_virtual_time(kCosts), 2);
  const test::Moving a = device.chunks(1), b = device.chunks(1), c = device.chunks(1);
  device.fill(a, kChunk, 1);
  device.fill(b, kChunk, 2);
  CHECK_OK(um_prefetch(a, kChunk, 1, nullptr));
  CHECK_OK(um_record(device, 1));
  device.op({test::read(b, kChunk)}, [] {
    um_op_took(700'000);
    um_op_took(300'000);
  });
  um_op_took(5);  // no op runs
  CHECK_OK(um_record(device, 0));
  um_recorded_op op{};
  CHECK_EQ(um_recorded_ops(device, &op, 1), 1u);
  CHECK_EQ(op.duration_ns, 1'000'000);
  const int64_t before_ns = device.swaps().wait_room_ns;
  device.fill(c, kChunk, 3);
  CHECK_EQ(device.swaps().wait_room_ns - before_ns, kCopy - 1'000'000);
}

TEST(a_cancelled_departure_costs_nothing) {
  Swapping device(Swapping::open_in_virtual_time(kCosts), 2);
  const test::Moving a = device.chunks(1);
  device.fill(a, kChunk, 1);
  const int64_t before_ns = device.swaps().wait_copy_ns;
  CHECK_OK(um_prefetch(a, kChunk, 1, nullptr));
  device.expect(a, kChunk, 1);
  CHECK_EQ(device.swaps().cancelled, 1);
  CHECK_EQ(device.swaps().wait_copy_ns, before_ns);
  device.fill(a, kChunk, 2);  // the host's copy would be of half-written contents
  CHECK_EQ(device.swaps().wait_copy_ns, before_ns + kCopy);
}

TEST(a_clock_is_set_once_and_first) {
  const um_link link = fixture::plain_link();
  Swapping late(2);
  CHECK_EQ(um_emulated_set_clock(late, &link, &kCosts), UM_BAD_STATE);
  Swapping device(Swapping::open_in_virtual_time(kCosts), 2);
  CHECK_EQ(um_emulated_set_clock(device, &link, &kCosts), UM_UNSUPPORTED);
  um_link wrong = link;
  wrong.bytes_per_s[0] = 0;
  um_device* const other = Swapping::open(0);
  CHECK_EQ(um_emulated_set_clock(other, &wrong, &kCosts), UM_INVALID_ARGUMENT);
  CHECK_OK(um_device_close(other));
}

TEST(faults_and_evictions_of_managed_memory_take_what_the_driver_does) {
  Swapping device(Swapping::open_in_virtual_time(kCosts), 2);
  const test::Moving a = device.allocate(32 * kChunk), b = device.allocate(kChunk);  // the device has 32 blocks
  const auto took = [&](const test::Moving& block, uint64_t chunks, unsigned char value) {
    const int64_t before = um_now_ns(device);
    device.fill(block, chunks * kChunk, value);
    return um_now_ns(device) - before;
  };
  CHECK_EQ(took(a, 32, 1), 32 * (1000 + 30));
  CHECK_EQ(took(a, 32, 2), 0);
  CHECK_EQ(took(b, 1, 3), 1000 + 4 + kCopy + 30);       // a block of `a` leaves first
  CHECK_EQ(took(a, 1, 4), 2 * kCopy + 1000 + 200 + 4);  // it comes back, and another one leaves
  CHECK_EQ(device.counters().fault_service_ns, 32 * 1030 + 1034 + kCopy + 2 * kCopy + 1204);
}

TEST(what_is_prefetched_is_waited_for_by_who_touches_it) {
  Swapping device(Swapping::open_in_virtual_time(kCosts), 2);
  const test::Moving a = device.allocate(kChunk);
  device.fill(a, kChunk, 1);
  const int64_t before = um_now_ns(device);
  CHECK_OK(um_prefetch(a, kChunk, 1, nullptr));
  CHECK_EQ(um_now_ns(device), before);
  device.op({}, [] { um_op_took(kCopy); });  // it has left by then
  CHECK_OK(um_prefetch(a, kChunk, 0, nullptr));
  CHECK_EQ(um_now_ns(device), before + kCopy);
  device.expect(a, kChunk, 1);
  CHECK_EQ(um_now_ns(device), before + 2 * kCopy);
}

TEST(what_takes_the_place_of_a_block_that_leaves_waits_for_it) {
  Swapping device(Swapping::open_in_virtual_time(kCosts), 2);
  const test::Moving a = device.allocate(32 * kChunk), b = device.allocate(kChunk);  // the device has 32 blocks
  device.fill(b, kChunk, 1);
  device.fill(a, 32 * kChunk, 2);  // `b` left
  const int64_t before = um_now_ns(device);
  CHECK_OK(um_prefetch(a, kChunk, 1, nullptr));
  CHECK_OK(um_prefetch(b, kChunk, 0, nullptr));
  CHECK_EQ(um_now_ns(device), before);
  device.expect(b, kChunk, 1);
  CHECK_EQ(um_now_ns(device), before + 2 * kCopy);
}
