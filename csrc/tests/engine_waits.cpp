// The waits of the engine that only the emulated device needs, as accesses that no op announced can be caught there;
// its copies take much longer than it takes this thread to go on (docs/waits.md).
#include "swapping_fixture.h"

using test::kChunk;
using test::Swapping;

namespace {

constexpr uint64_t kBytes = 4 * kChunk;

struct Slow : Swapping {
  Slow() : Swapping(open(3000), 4, 1) {}
  // On the host, and its chunks hold something else.
  unsigned char* away(unsigned char value) {
    unsigned char* block = chunks(4);
    fill(block, kBytes, value);
    unsigned char* other = chunks(4);
    fill(other, kBytes, 200);
    free(other);
    return block;
  }
};

void move(const void* block, int32_t to_host) { CHECK_OK(um_prefetch(block, kBytes, to_host, nullptr)); }

}  // namespace

TEST(an_access_that_no_op_announced_waits_for_a_departure) {
  Slow device;
  unsigned char* block = device.chunks(4);
  device.fill(block, kBytes, 5);
  move(block, 1);
  CHECK(test::holds(block, 5, kBytes));
}

TEST(an_access_that_no_op_announced_waits_for_an_arrival) {
  Slow device;
  unsigned char* block = device.away(5);
  move(block, 0);
  CHECK(test::holds(block, 5, kBytes));
}

TEST(a_write_that_no_op_announced_waits_for_the_copy_of_a_cancelled_departure) {
  Slow device;
  unsigned char* elsewhere = device.chunks(4);
  unsigned char* block = device.chunks(4);
  device.fill(block, kBytes, 3);
  move(block, 1);
  device.expect(block, kBytes, 3);  // it stays
  CHECK_EQ(device.swaps().cancelled, int64_t{1});
  block[0] = 4;
  device.free(block);
  device.fill(elsewhere, kBytes, 7);
  device.expect(elsewhere, kBytes, 7);
}

// Whoever has its address may have written to it after it came.
TEST(what_was_exported_is_read_from_the_device_once_it_is_there) {
  Slow device;
  unsigned char* block = device.away(5);
  CHECK_OK(um_export(block));
  CHECK_OK(um_export_release(block));
  device.free(device.away(100));  // it leaves again
  move(block, 0);
  std::vector<unsigned char> out(kBytes);
  CHECK_OK(um_copy_to_host(out.data(), block, kBytes));
  CHECK(test::holds(out.data(), 5, kBytes));
}
