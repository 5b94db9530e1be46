// The waits of the engine that only the emulated device needs, as accesses that no op announced can be caught there
// (docs/waits.md). Copies begin when somebody sleeps until one has ended.
#include <atomic>
#include <future>
#include <thread>

#include "devices/emulated/device.h"
#include "swapping_fixture.h"

using test::kChunk;
using test::Swapping;
using test::write;

namespace {

struct Late : Swapping {
  Late() : Swapping(open(0), 2) {
    next = chunks(1);
    block = chunks(1);
    fill(block, kChunk, 5);
  }
  ~Late() {
    done_ = true;
    if (opener_.joinable()) opener_.join();
  }
  // From now on.
  void copies_are_late() {
    um_device_info info{};
    CHECK_OK(um_device_query(handle, &info));
    um::emulated::Device* const emulated = um::emulated::device_at(info.ordinal);
    const std::shared_future<void> opened = open_.get_future();
    for (const auto& stream : emulated->streams) stream->give([opened] { opened.wait(); });
    const auto sleeps = [emulated] { return emulated->log.calls("cuEventSynchronize"); };
    opener_ = std::thread([this, sleeps, before = sleeps()] {
      while (!done_ && sleeps() == before) std::this_thread::yield();
      open_.set_value();
    });
  }
  // What it lay in holds something else.
  void send_away() {
    move(1);
    test::Moving other = chunks(2);
    fill(other, 2 * kChunk, 200);
    free(other);
  }
  void move(int32_t to_host) { CHECK_OK(um_prefetch(block, kChunk, to_host, nullptr)); }

  test::Moving next, block;

 private:
  std::promise<void> open_;
  std::thread opener_;
  std::atomic<bool> done_{false};
};

}  // namespace

TEST(what_left_is_whole_when_its_memory_is_somebody_elses) {
  Late device;
  device.copies_are_late();
  device.move(1);
  test::Moving other = device.chunks(2);
  device.op({write(other, 2 * kChunk)}, [&] { std::memset(other, 200, 2 * kChunk); });
  CHECK(test::holds(device.block, 5, kChunk));
}

TEST(an_access_that_no_op_announced_waits_for_an_arrival) {
  Late device;
  device.send_away();
  device.copies_are_late();
  device.move(0);
  CHECK(test::holds(device.block, 5, kChunk));
}

TEST(so_does_one_to_what_leaves_before_it_has_come) {
  for (const bool writes : {false, true}) {
    Late device;
    device.send_away();
    device.copies_are_late();
    device.move(0);
    device.move(1);
    if (writes) device.block[0] = 4;
    CHECK_EQ(int{device.block[0]}, writes ? 4 : 5);
    CHECK(test::holds(device.block + 1, 5, kChunk - 1));
    device.expect(device.block + 1, kChunk - 1, 5);
  }
}

TEST(a_write_that_no_op_announced_waits_for_the_copy_of_a_cancelled_departure) {
  Late device;
  test::Moving other = device.chunks(1);
  device.fill(other, kChunk, 6);
  device.copies_are_late();
  device.move(1);
  device.expect(device.block, kChunk, 5);  // it stays
  CHECK_EQ(device.swaps().cancelled, int64_t{1});
  device.block[0] = 4;
  device.free(device.block);
  CHECK_OK(um_memory_trim(device));  // the copy would read what is gone
  device.expect(other, kChunk, 6);
  um_device_info info{};
  CHECK_OK(um_device_query(device, &info));  // it is not lost
}
