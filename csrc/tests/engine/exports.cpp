// Exports whose end nobody sees: they hold their allocations on the device until something finds no room, and then the
// one that was asked for longest ago gives way. What left has another address; what managed memory has not, a system
// call tells: it gives EFAULT.
#include <unistd.h>

#include <cerrno>

#include "swapping_fixture.h"

using test::Device;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::read;
using test::Swapping;
using test::write;

namespace {

uint64_t ended(um_device* device) {
  um_memory_history out{};
  CHECK_OK(um_memory_history_read(device, &out));
  return out.exports_ended;
}

class Pipe {
 public:
  Pipe() { CHECK_EQ(pipe(ends_), 0); }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  bool takes(const test::Moving& from) {
    constexpr ssize_t kBytes = 1000;
    if (::write(ends_[1], from, kBytes) != kBytes) {
      CHECK_EQ(errno, EFAULT);
      return false;
    }
    unsigned char taken[kBytes];
    CHECK_EQ(::read(ends_[0], taken, kBytes), kBytes);
    return true;
  }

 private:
  int ends_[2] = {};
};

// Three chunks, full of blocks that an op has written to.
struct Full : Swapping {
  Full() : Swapping(3) {
    for (unsigned char i = 0; i < 3; ++i) {
      blocks.push_back(chunks(1));
      fill(blocks.back(), kChunk, i);
    }
  }
  void export_lasting(size_t block) {
    CHECK_OK(um_export_lasting(blocks[block]));
    out_[block] = blocks[block];
  }
  // Where it was when its address was given out.
  bool holds(size_t block) const { return blocks[block] == out_[block]; }
  std::vector<test::Moving> blocks;

 private:
  unsigned char* out_[3] = {};
};

}  // namespace

TEST(an_op_without_room_ends_the_oldest_lasting_export_and_no_more) {
  Full device;
  for (size_t i = 0; i < 3; ++i) device.export_lasting(i);
  CHECK_OK(um_export_lasting(device.blocks[0] + 100));  // once more, wherever in it: now it is the latest
  std::memset(device.blocks[1], 7, kChunk);             // by somebody outside
  test::Moving wanted = device.chunks(1);
  device.fill(wanted, kChunk, 9);
  CHECK_EQ(ended(device), uint64_t{1});
  CHECK(device.holds(0) && !device.holds(1) && device.holds(2));
  for (int round = 0; round < 3; ++round) {  // the two take turns in the chunk that is left
    device.expect(device.blocks[1], kChunk, 7);
    device.expect(wanted, kChunk, 9);
  }
  CHECK_EQ(ended(device), uint64_t{1});
  CHECK_EQ(Device::at(device.blocks[1]).exports, 1u);  // its address is still out
  CHECK_EQ(Device::at(wanted).exports, 0u);
  CHECK_EQ(Device::at(device.blocks[0]).exports, 1u);
  CHECK_FAILS(UM_BAD_STATE, um_export_release(device.blocks[0]));
  CHECK_FAILS(UM_BAD_STATE, um_export_release(device.blocks[1]));
}

TEST(what_was_ended_is_held_again_when_it_is_asked_for_again) {
  Full device;
  for (size_t i = 0; i < 3; ++i) device.export_lasting(i);
  test::Moving wanted = device.chunks(1);
  device.fill(wanted, kChunk, 9);
  CHECK(!device.holds(0));
  device.export_lasting(0);  // there is room: what no export holds leaves
  CHECK_EQ(ended(device), uint64_t{1});
  CHECK_EQ(Device::at(device.blocks[0]).exports, 1u);
  device.expect(wanted, kChunk, 9);
  CHECK_EQ(ended(device), uint64_t{2});
  CHECK(device.holds(0) && !device.holds(1));
}

TEST(exports_with_an_end_and_what_the_op_uses_give_no_way) {
  Full device;
  for (size_t i = 0; i < 2; ++i) device.export_lasting(i);
  CHECK_OK(um_export(device.blocks[1], nullptr));
  CHECK_OK(um_export(device.blocks[2], nullptr));
  unsigned char* const third = device.blocks[2];
  test::Moving wanted = device.chunks(1);
  const um_access accesses[] = {read(device.blocks[0], kChunk), write(wanted, kChunk)};
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_op_begin(device, um_intern("op"), 0, 0, 0, accesses, 2));
  CHECK_EQ(ended(device), uint64_t{0});
  CHECK(device.holds(0) && device.holds(1) && device.blocks[2] == third);
  CHECK_OK(um_export_release(device.blocks[1]));  // the other one holds it
  CHECK(device.holds(1));
  device.op({read(device.blocks[0], kChunk), write(wanted, kChunk)});
  CHECK_EQ(ended(device), uint64_t{1});
  CHECK(device.holds(0) && !device.holds(1));
  CHECK_OK(um_export(device.blocks[1], nullptr));  // the export of blocks[0] ends for it
  CHECK_EQ(Device::at(device.blocks[1]).exports, 2u);
  CHECK_OK(um_export_release(device.blocks[1]));
  CHECK_EQ(Device::at(device.blocks[1]).exports, 1u);
  device.fill(wanted, kChunk, 9);
  device.expect(device.blocks[0], kChunk, 0);
}

TEST(small_and_new_allocations_and_exports_get_room_too) {
  Full device;
  for (size_t i = 0; i < 3; ++i) device.export_lasting(i);
  test::Moving small = device.allocate(1000, kChunked);  // in a chunk that stays
  CHECK_EQ(ended(device), uint64_t{1});
  CHECK_OK(um_export_lasting(small));
  test::Moving made = device.chunks(1);
  device.op({write(made, kChunk)});
  CHECK_EQ(ended(device), uint64_t{2});
  CHECK_OK(um_export_lasting(made));
  unsigned char* const at = made;
  device.free(device.blocks[2]);  // and its export with it
  CHECK_OK(um_export(device.chunks(1), nullptr));
  CHECK_EQ(ended(device), uint64_t{2});
  CHECK(made == at);
  device.expect(device.blocks[0], kChunk, 0);
  device.expect(device.blocks[1], kChunk, 1);
}

TEST(managed_memory_gives_way_to_newer_exports) {
  Device device(16 * kMiB);
  CHECK_OK(um_budget_set(device, 16 * kMiB));
  std::vector<test::Moving> blocks;
  for (unsigned char i = 0; i < 6; ++i) {
    blocks.push_back(device.allocate(4 * kMiB));
    std::memset(blocks.back(), i, 4 * kMiB);
    CHECK_OK(um_export_lasting(blocks.back()));
  }
  Pipe kernel;
  const uint64_t count = ended(device);
  CHECK(count >= 2 && count < 6);
  for (size_t i = count; i < 6; ++i) CHECK(kernel.takes(blocks[i]));
  test::Moving large = device.allocate(10 * kMiB);
  CHECK_OK(um_export(large, nullptr));
  CHECK(ended(device) > count);
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_export_lasting(device.allocate(18 * kMiB)));
  CHECK_EQ(ended(device), uint64_t{6});
  CHECK_EQ(Device::at(device.live.back()).exports, 0u);
  for (unsigned char i = 0; i < 6; ++i) CHECK(test::holds(blocks[i], i, 4 * kMiB));
  CHECK_OK(um_export_release(large));
  device.op({write(device.allocate(12 * kMiB), 12 * kMiB)});  // nothing is pinned any more, in the budget neither
  CHECK_EQ(device.memory().resident_bytes, 16 * kMiB);
}
