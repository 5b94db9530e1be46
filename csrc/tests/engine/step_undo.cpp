// A refused step gives back what it wrote: watched allocations from its beginning on, all others from the refusal on.
#include <string>

#include "check.h"
#include "swapping_fixture.h"

using test::kChunk;
using test::read;
using test::Swapping;
using test::write;

namespace {

// Needs more than three chunks, and is put off.
void refuse(Swapping& device, const test::Moving& one, const test::Moving& two) {
  const um_access both[] = {read(one, 2 * kChunk), read(two, 2 * kChunk)};
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_op_begin(device, um_intern("aten::add"), 0, 0, 0, both, 2));
  CHECK_OK(um_refusals_put_off(device));
  device.op({both[0], both[1]}, [] {}, "aten::add");
}

uint64_t undo(const Swapping& device) {
  uint64_t refused_at = 0;
  CHECK_OK(um_step_undo(device, &refused_at));
  return refused_at;
}

}  // namespace

TEST(what_is_written_after_a_refusal_is_written_back) {
  Swapping device(3);
  test::Moving one = device.chunks(2), two = device.chunks(2), changed = device.chunks(1);
  device.fill(one, 2 * kChunk, 1);
  device.fill(two, 2 * kChunk, 2);
  device.fill(changed, kChunk, 3);
  CHECK_OK(um_step_set(device, 1));
  device.fill(changed, kChunk, 4);  // before the refusal: for good
  CHECK_EQ(um_refusal_pending(device), 0);
  refuse(device, one, two);
  CHECK_EQ(um_refusal_pending(device), 1);
  test::Moving younger = device.chunks(1);
  device.fill(changed, kChunk, 5);
  device.fill(changed, kChunk, 6);
  device.fill(two, 2 * kChunk, 7);
  device.fill(younger, kChunk, 8);
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  const uint64_t refused_at = undo(device);
  CHECK(test::Device::at(changed).serial <= refused_at && refused_at < test::Device::at(younger).serial);
  device.expect(changed, kChunk, 4);
  device.expect(two, 2 * kChunk, 2);
  device.expect(younger, kChunk, 8);
  CHECK_EQ(undo(device), uint64_t{0});
}

TEST(what_is_watched_gets_back_what_the_step_found) {
  Swapping device(3);
  test::Moving one = device.chunks(2), two = device.chunks(2), watched = device.allocate(1000, test::kChunked);
  device.fill(watched, 1000, 1);
  CHECK_OK(um_step_watch(watched));
  for (unsigned char step = 1; step <= 2; ++step) {  // the first is not refused
    CHECK_OK(um_step_set(device, step));
    device.fill(watched, 1000, static_cast<unsigned char>(step + 1));
    CHECK_OK(um_step_set(device, 0));
    device.fill(watched, 1000, static_cast<unsigned char>(step + 10));  // outside of steps
  }
  CHECK_OK(um_step_set(device, 3));
  device.fill(watched, 1000, 20);
  device.fill(watched, 1000, 21);
  refuse(device, one, two);
  device.fill(watched, 1000, 22);
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  static_cast<void>(undo(device));
  device.expect(watched, 1000, 12);
}

TEST(what_has_been_freed_is_not_written_back) {
  Swapping device(3);
  test::Moving one = device.chunks(2), two = device.chunks(2);
  CHECK_OK(um_step_set(device, 1));
  {
    test::Moving freed = device.chunks(1);
    device.fill(freed, kChunk, 1);
    refuse(device, one, two);
    device.fill(freed, kChunk, 2);
  }
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  CHECK(undo(device) > 0);
}

// A second try within the step is not refused for the first one.
TEST(a_refusal_may_end_within_its_step) {
  Swapping device(3);
  test::Moving one = device.chunks(2), two = device.chunks(2);
  CHECK_OK(um_step_set(device, 1));
  CHECK_OK(um_refusals_end(device, 0, 0));
  refuse(device, one, two);
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_refusals_end(device, 3 * kChunk, 4));
  const std::string message = um_last_error();
  CHECK(message.find("an update of a parameter: its working set takes 24 MiB") != std::string::npos);
  CHECK(message.find("a budget of 40 MiB") != std::string::npos);
  CHECK_EQ(um_refusal_pending(device), 0);
  static_cast<void>(undo(device));
  device.fill(one, 2 * kChunk, 1);
  CHECK_OK(um_step_set(device, 0));
}

TEST(a_parameter_that_changed_before_the_refusal_is_named) {
  Swapping device(3);
  test::Moving one = device.chunks(2), two = device.chunks(2);
  const um_placement placement{UM_MEMORY_CHUNKED, UM_ROLE_PARAMETER, UM_ADVICE_NONE};
  test::Moving first = device.allocate(kChunk, placement), second = device.allocate(kChunk, placement);
  CHECK_OK(um_allocation_label(first, UM_ROLE_PARAMETER, um_intern("first.weight")));
  device.fill(second, kChunk, 9);
  CHECK_OK(um_step_set(device, 1));
  device.expect(second, kChunk, 9);  // reads change nothing
  device.fill(first, kChunk, 1);
  device.fill(second, kChunk, 2);
  refuse(device, one, two);
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  CHECK(std::string(um_last_error()).find("stay changed: the first is first.weight") != std::string::npos);
  CHECK_OK(um_step_set(device, 2));
  refuse(device, one, two);
  device.fill(first, kChunk, 3);  // which is written back
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  CHECK(std::string(um_last_error()).find("stay changed") == std::string::npos);
}

// What stays where there is room for it, and is used where it lies where there is none, counts as staying.
TEST(the_budget_that_a_refusal_names_holds_what_nobody_can_move) {
  Swapping device(3);
  test::Moving input = device.chunks(1);
  device.fill(input, kChunk, 1);
  CHECK_OK(um_step_set(device, 1));
  void* kept[6] = {};
  for (void*& each : kept) {  // as autograd's copies of what ops overwrite: no storage shows their addresses
    device.op({read(input, kChunk)}, [&] {
      if (um_allocate(device, kChunk, &test::kChunked, nullptr, &each) == UM_OK) return;
      CHECK_OK(um_refusals_put_off(device));
      CHECK_OK(um_allocate(device, kChunk, &test::kChunked, nullptr, &each));
    });
  }
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  // The last op takes two chunks beside five.
  CHECK(std::string(um_last_error()).find("a budget of 30 MiB") != std::string::npos);
  for (void* each : kept) um_free(each);
}
