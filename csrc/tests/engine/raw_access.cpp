// Accesses that no op announces, wherever a tensor is and whatever moves: reads find its bytes, writes are never lost.
#include <random>
#include <thread>

#include "swapping_fixture.h"

using test::Device;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::Swapping;

namespace {

// A few chunks.
struct Raw : Swapping {
  explicit Raw(uint64_t budget_chunks, uint32_t delay_max_us = 0) : Swapping(open(delay_max_us), budget_chunks) {}
  int64_t silent_writes() const { return swaps().silent_writes; }
};

// What routes allocate for whoever asks outside of ops, as an extension does for a tensor that it fills by itself.
test::Moving allocate_outside_ops(Device& device, uint64_t bytes) {
  const um_route route{UM_ROUTE_ON, kChunked, device.handle, 0};
  um_route_set_thread(&route);
  void* address = nullptr;
  CHECK_OK(um_allocate_routed(bytes, nullptr, &address));
  const um_route none{};
  um_route_set_thread(&none);
  return device.keep(address);
}

}  // namespace

TEST(what_is_on_the_host_is_read_and_written_there) {
  Raw device(2);
  test::Moving block = device.chunks(2);
  device.fill(block, 2 * kChunk, 1);
  test::Moving other = device.chunks(2);
  device.fill(other, 2 * kChunk, 2);  // the first one leaves
  const int64_t before = device.swaps().swap_ins;
  CHECK(test::holds(block, 1, 2 * kChunk));
  std::memset(block, 3, 2 * kChunk);
  CHECK_EQ(device.swaps().swap_ins, before);
  device.expect(block, 2 * kChunk, 3);
  device.expect(other, 2 * kChunk, 2);
}

TEST(a_write_to_what_is_clean_makes_it_dirty) {
  Raw device(2);
  test::Moving block = device.chunks(2);
  device.fill(block, 2 * kChunk, 1);
  test::Moving other = device.chunks(2);
  for (unsigned char value = 2; value < 6; ++value) {
    device.fill(other, 2 * kChunk, 9);
    device.expect(block, 2 * kChunk, value == 2 ? 1 : static_cast<unsigned char>(value - 1));  // clean now
    CHECK_EQ(device.silent_writes(), value - 2);
    std::memset(block, value, 2 * kChunk);
  }
  device.fill(other, 2 * kChunk, 9);
  device.expect(block, 2 * kChunk, 5);
}

TEST(what_was_made_outside_of_ops_is_there_and_keeps_what_is_written) {
  Raw device(3);
  std::vector<test::Moving> blocks;
  for (unsigned char value = 1; value < 9; ++value) {
    blocks.push_back(allocate_outside_ops(device, kChunk));
    CHECK_EQ(device.silent_writes(), 0);
    std::memset(blocks.back(), value, kChunk);
    device.expect(blocks.back(), kChunk, value);  // from now on it may leave
  }
  for (size_t i = 0; i < blocks.size(); ++i) device.expect(blocks[i], kChunk, static_cast<unsigned char>(i + 1));
}

TEST(so_does_what_an_op_made_that_touches_nothing) {
  Raw device(3);
  std::vector<test::Moving> blocks;
  for (unsigned char value = 1; value < 9; ++value) {
    device.op({}, [&] { blocks.push_back(device.chunks(1)); }, "aten::empty", true);
    std::memset(blocks.back(), value, kChunk);
    device.expect(blocks.back(), kChunk, value);  // from now on it may leave
  }
  for (size_t i = 0; i < blocks.size(); ++i) device.expect(blocks[i], kChunk, static_cast<unsigned char>(i + 1));
}

TEST(memory_of_the_same_place_does_not_show_through) {
  Raw device(4);
  for (int round = 0; round < 4; ++round) {
    test::Moving block = allocate_outside_ops(device, kChunk);
    device.fill(block, kChunk, 7);
    unsigned char* const at = block;
    device.free(block);  // its chunk stays mapped there
    test::Moving next = allocate_outside_ops(device, kChunk);
    CHECK(next == at);
    std::memset(next, 5, kChunk);
    device.expect(next, kChunk, 5);
    device.fill(device.chunks(4), 4 * kChunk, 1);
    device.expect(next, kChunk, 5);
    while (!device.live.empty()) device.free(device.live.back());
  }
}

TEST(an_op_may_touch_what_it_did_not_name) {
  Raw device(2);
  test::Moving block = device.chunks(1);
  device.fill(block, kChunk, 1);
  test::Moving other = device.chunks(2);
  device.op({test::write(other, 2 * kChunk)}, [&] {
    std::memset(other, 2, 2 * kChunk);
    CHECK(test::holds(block, 1, kChunk));
    std::memset(block, 3, kChunk);
  });
  device.expect(block, kChunk, 3);
  device.expect(other, 2 * kChunk, 2);
}

TEST(memory_of_ours_may_be_the_other_side_of_a_copy) {
  Raw device(2);
  test::Moving from = device.chunks(2);
  device.fill(from, 2 * kChunk, 1);
  test::Moving to = device.chunks(2);
  device.fill(to, 2 * kChunk, 2);
  CHECK_OK(um_copy_from_host(to, from, kChunk));
  device.expect(to, kChunk, 1);
  device.fill(to, 2 * kChunk, 3);
  CHECK_OK(um_copy_to_host(from, to, 2 * kChunk));
  device.expect(from, 2 * kChunk, 3);
}

// As random_traffic_keeps_every_byte, with accesses of two more threads, each to a block of its own, which stays.
TEST(random_raw_traffic_keeps_every_byte) {
  for (uint32_t round = 0; round < check::times(12); ++round) {
    std::mt19937 random(round);
    Raw device(12 + round % 6, round % 3 == 0 ? 200 : 0);
    struct Live {
      test::Moving block;
      uint64_t bytes;
      unsigned char value;
    };
    const auto expect = [](const Live& each) { CHECK(test::holds(each.block, each.value, each.bytes)); };
    const auto fill = [](Live& each, unsigned char value) {
      each.value = value;
      std::memset(each.block, value, each.bytes);
    };
    const auto make = [&] {
      const uint64_t bytes = kChunk / 2 + 1 + random() % (2 * kChunk);
      Live made{nullptr, bytes, 0};
      if (random() % 2 == 0) {
        made.block = allocate_outside_ops(device, bytes);
      } else {
        device.op({}, [&] { made.block = device.allocate(bytes, kChunked); }, "aten::empty", true);
      }
      fill(made, static_cast<unsigned char>(random()));
      return made;
    };
    Live theirs[2] = {make(), make()};
    std::string wrong[2];
    std::thread threads[2];
    for (int i = 0; i < 2; ++i) {
      threads[i] = std::thread([&, i] {
        try {
          for (int turn = 0; turn < 200; ++turn) {
            expect(theirs[i]);
            if (turn % 3 == i) fill(theirs[i], static_cast<unsigned char>(turn));
          }
        } catch (const std::exception& error) {
          wrong[i] = error.what();
        }
      });
    }
    std::vector<Live> live;
    for (int turn = 0; turn < 200; ++turn) {
      const uint32_t what = random() % 8;
      if (live.size() < 3 || (what == 0 && live.size() < 10)) {
        live.push_back(make());
        device.expect(live.back().block, live.back().bytes, live.back().value);  // from now on it may leave
        continue;
      }
      const size_t chosen = random() % live.size();
      Live& each = live[chosen];
      switch (what) {
        case 1:
          device.free(each.block);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(chosen));
          break;
        case 2:
          each.value = static_cast<unsigned char>(random());
          device.fill(each.block, each.bytes, each.value);
          break;
        case 3:
          CHECK_OK(um_prefetch(each.block, each.bytes, random() % 2, nullptr));
          [[fallthrough]];
        case 4:
          random() % 2 == 0 ? fill(each, static_cast<unsigned char>(random())) : expect(each);
          break;
        case 5:
          CHECK_OK(um_prefetch(theirs[random() % 2].block, 1, random() % 2, nullptr));
          break;
        default:
          device.expect(each.block, each.bytes, each.value);
      }
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& each : wrong) CHECK_EQ(each, std::string());
    for (const Live& each : live) expect(each);
    for (const Live& each : theirs) device.expect(each.block, each.bytes, each.value);
  }
}
