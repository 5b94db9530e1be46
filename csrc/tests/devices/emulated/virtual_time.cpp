// An emulated device in virtual time: what copies, waits and ops take is known to the nanosecond.
#include "devices/emulated/virtual_time.h"

#include "swapping_fixture.h"

using test::kChunk;
using test::kMiB;
using test::Swapping;

namespace {

constexpr int64_t kCopy = kChunk;  // a byte takes a nanosecond

}  // namespace

TEST(ops_wait_as_long_as_copies_take) {
  Swapping device(Swapping::open_in_virtual_time(), 2);
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
  Swapping device(Swapping::open_in_virtual_time(), 2);
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
  Swapping device(Swapping::open_in_virtual_time(), 2);
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
  CHECK_EQ(um_emulated_set_clock(late, &link), UM_BAD_STATE);
  Swapping device(Swapping::open_in_virtual_time(), 2);
  CHECK_EQ(um_emulated_set_clock(device, &link), UM_UNSUPPORTED);
  um_link wrong = link;
  wrong.bytes_per_s[0] = 0;
  um_device* const other = Swapping::open(0);
  CHECK_EQ(um_emulated_set_clock(other, &wrong), UM_INVALID_ARGUMENT);
  CHECK_OK(um_device_close(other));
}
