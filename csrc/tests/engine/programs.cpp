// Several programs at a time: which one a step follows, and where in it it is, where its ops are not those in order.
// Contents are right whatever a step does.
#include "swapping_fixture.h"

using test::kChunk;
using test::Swapping;

namespace {

constexpr int kStorages = 8;

// Storages of one chunk that every step has, in a device that has room for some of them; op i of a program reads one.
struct Steps {
  explicit Steps(um_device* opened, uint64_t budget_chunks) : device(opened, budget_chunks) {
    for (int i = 0; i < kStorages; ++i) {
      blocks.push_back(device.chunks(1));
      device.fill(blocks.back(), kChunk, static_cast<unsigned char>(i + 1));
      serials.push_back(test::Device::at(blocks.back()).serial);
    }
  }
  // Another allocation in its place: no program knows it when a step begins.
  void renew(size_t i) {
    blocks[i] = device.chunks(1);
    device.fill(blocks[i], kChunk, static_cast<unsigned char>(i + 1));
    serials[i] = 0;
    states[i] = 0;
  }
  // A program that reads these; returns its number. `planned`: by a plan that does nothing.
  uint32_t add(const std::vector<int>& order, bool is_last = true, bool planned = false) {
    fixture::Trace trace;
    for (int i = 0; i < kStorages; ++i) trace.allocate(kChunk);
    for (const int i : order) trace.use(kOpNs, {i});
    const std::vector<uint32_t> names(order.size(), um_intern("read"));
    const um_trace columns = trace.columns();
    const um_plan nothing{};
    um_program program{};
    program.trace = &columns;
    program.plan = planned ? &nothing : nullptr;
    program.op_name = names.data();
    program.first_serials = serials.data();
    program.state = states.data();
    program.h2d_bytes_per_s = h2d_bytes_per_s;
    program.is_last = is_last;
    uint32_t number = 0;
    CHECK_OK(um_program_add(device, &program, &number));
    return number;
  }
  um_swap_counters run(const std::vector<int>& order, const char* name = "read") {
    CHECK_OK(um_step_set(device, ++step));
    for (const int i : order) {
      const test::Moving& block = blocks[static_cast<size_t>(i)];
      device.op(
          {test::read(block, kChunk)},
          [&] {
            um_op_took(kOpNs);
            CHECK(test::holds(block, static_cast<unsigned char>(i + 1), kChunk));
          },
          name);
    }
    CHECK_OK(um_step_set(device, 0));
    return device.swaps();
  }

  static constexpr int64_t kOpNs = 5'000'000;
  Swapping device;
  std::vector<test::Moving> blocks;
  std::vector<uint64_t> serials;
  std::vector<uint8_t> states = std::vector<uint8_t>(kStorages, 1);
  int64_t h2d_bytes_per_s = 0;
  uint32_t step = 0;
};

}  // namespace

TEST(steps_in_turns_follow_their_own_programs) {
  Steps steps(Swapping::open(0), 4);
  steps.run({0, 1, 2, 3, 4});
  const uint32_t one = steps.add({0, 1, 2, 3, 4});
  steps.run({0, 5, 6, 7});
  const uint32_t other = steps.add({0, 5, 6, 7});
  for (int turn = 0; turn < 4; ++turn) {
    um_swap_counters found = steps.run({0, 1, 2, 3, 4});
    CHECK_EQ(found.program_number, one);
    CHECK_EQ(found.unknown_ops, 0u);
    CHECK_EQ(found.jumps, 0u);
    found = steps.run({0, 5, 6, 7});  // until its second op it may be either
    CHECK_EQ(found.program_number, other);
    CHECK_EQ(found.unknown_ops, 0u);
    CHECK_EQ(found.jumps, 0u);
    CHECK_EQ(found.step_ops, 4u);
  }
  const um_swap_counters before = steps.device.swaps();  // each is expected after the other one by now
  CHECK_EQ(steps.run({0, 1, 2, 3, 4}).program, uint32_t{UM_PROGRAM_WAITING});
  CHECK_EQ(steps.run({0, 5, 6, 7}).programs_followed, before.programs_followed + 2);
}

TEST(steps_are_followed_after_skipped_added_and_repeated_ops) {
  Steps steps(Swapping::open(0), 4);
  steps.add({0, 1, 2, 3, 4, 5});
  steps.run({0, 1, 2, 3, 4, 5});
  um_swap_counters found = steps.run({0, 1, 4, 5});
  CHECK_EQ(found.unknown_ops, 0u);
  CHECK_EQ(found.jumps, 1u);
  CHECK_EQ(found.program, uint32_t{UM_PROGRAM_DIVERGED});
  CHECK_EQ(found.diverged_op, 3u);
  found = steps.run({0, 1, 6, 7, 2, 3, 4, 5});  // nobody knows two of them
  CHECK_EQ(found.unknown_ops, 2u);
  CHECK_EQ(found.jumps, 0u);
  found = steps.run({0, 1, 2, 1, 2, 1, 2, 3, 4, 5});
  CHECK_EQ(found.unknown_ops, 0u);
  CHECK_EQ(found.jumps, 2u);
  found = steps.run({0, 1, 2});  // it ends early
  CHECK_EQ(found.unknown_ops, 0u);
  CHECK_EQ(found.program, uint32_t{UM_PROGRAM_DIVERGED});
  found = steps.run({0, 1, 2, 3, 4, 5});
  CHECK_EQ(found.program, uint32_t{UM_PROGRAM_WAITING});
  CHECK_EQ(found.jumps, 0u);
}

TEST(of_programs_that_may_still_be_right_the_longest_is_followed) {
  Steps steps(Swapping::open(0), 4);
  const uint32_t once = steps.add({0, 1, 7});
  const uint32_t twice = steps.add({0, 1, 0, 1, 7});
  const uint32_t often = steps.add({0, 1, 0, 1, 0, 1, 0, 1, 7});
  steps.add({0, 1, 0, 1, 0, 1, 7});
  CHECK_EQ(steps.run({0, 1, 7}).program_number, once);
  CHECK_EQ(steps.run({0, 1, 0}).program_number, often);
  CHECK_EQ(steps.run({0, 1, 0, 1, 7}).program_number, twice);
}

TEST(an_operator_that_no_program_has_is_known_nowhere) {
  Steps steps(Swapping::open(0), 4);
  steps.add({0, 1, 2, 3});
  const um_swap_counters found = steps.run({0, 1, 2, 3}, "write");
  CHECK_EQ(found.unknown_ops, 4u);
  CHECK_EQ(found.step_ops, 4u);
}

TEST(programs_go_one_by_one) {
  Steps steps(Swapping::open(0), 4);
  const uint32_t one = steps.add({0, 1, 2}), other = steps.add({3, 4, 5});
  steps.run({0, 1, 2});
  CHECK_OK(um_program_drop(steps.device, one));
  CHECK_EQ(steps.run({0, 1, 2}).unknown_ops, 3u);
  CHECK_EQ(steps.run({3, 4, 5}).program_number, other);
  CHECK_OK(um_program_drop(steps.device, other));
  CHECK_EQ(steps.run({3, 4, 5}).program, uint32_t{UM_PROGRAM_NONE});
  CHECK_OK(um_program_drop(steps.device, 77));  // there is none
  steps.device.free(steps.blocks.front());
  steps.blocks.front() = steps.device.chunks(1);  // what a program knew has gone
  steps.device.fill(steps.blocks.front(), kChunk, 1);
  steps.add({0, 1, 2});
  CHECK_EQ(steps.run({1, 2}).unknown_ops, 0u);
}

// Ops take longer than copies, so nobody needs to wait.
TEST(without_a_plan_everything_comes_ahead_of_its_use) {
  Steps steps(Swapping::open_in_virtual_time(), 4);
  steps.h2d_bytes_per_s = static_cast<int64_t>(fixture::plain_link().bytes_per_s[0]);
  steps.add({0, 1, 2, 3, 4, 5, 6, 7});
  for (int round = 0; round < 3; ++round) steps.run({0, 1, 2, 3, 4, 5, 6, 7});
  const um_swap_counters before = steps.device.swaps();
  for (int round = 0; round < 5; ++round) steps.run({0, 1, 2, 3, 4, 5, 6, 7});
  const um_swap_counters after = steps.device.swaps();
  CHECK(after.swap_ins > before.swap_ins);
  CHECK_EQ(after.on_demand_swap_ins, before.on_demand_swap_ins);
  CHECK_EQ(after.wait_copy_ns + after.wait_room_ns, before.wait_copy_ns + before.wait_room_ns);
}

// Another plan of a step that has been followed to its end: what it takes to be there has left in between.
TEST(what_a_new_plan_takes_to_be_there_comes_ahead_of_its_use) {
  Steps steps(Swapping::open_in_virtual_time(), kStorages);
  steps.h2d_bytes_per_s = static_cast<int64_t>(fixture::plain_link().bytes_per_s[0]);
  CHECK_OK(um_owners_remember(steps.device, UM_OWNERS_CONVERTED_IN_OPS));
  um_swap_counters before{};
  for (const um_memory kind : {UM_MEMORY_MANAGED, UM_MEMORY_CHUNKED}) {
    const um_conversion wanted{kind, {}, {~0u, ~0u, ~0u}};
    um_converted out{};
    CHECK_OK(um_convert(steps.device, &wanted, &out));
    CHECK_EQ(out.moved, uint64_t{kStorages});
    steps.add({0, 1, 2, 3, 4, 5, 6, 7}, true, true);
    before = steps.device.swaps();
    for (int round = 0; round < 3; ++round) steps.run({0, 1, 2, 3, 4, 5, 6, 7});
  }
  const um_swap_counters after = steps.device.swaps();
  CHECK_EQ(after.swap_ins, before.swap_ins + kStorages);
  CHECK_EQ(after.on_demand_swap_ins, before.on_demand_swap_ins + 1);  // of the first op
}

// Such as gradients that are made in one network's step, and added to in the other's.
TEST(what_one_programs_step_leaves_to_the_others_comes_ahead_of_its_use) {
  Steps steps(Swapping::open_in_virtual_time(), 4);
  steps.h2d_bytes_per_s = static_cast<int64_t>(fixture::plain_link().bytes_per_s[0]);
  steps.renew(7);
  steps.add({7, 0, 1, 2, 3});
  steps.add({4, 5, 6, 0, 1, 7, 2});
  for (int turn = 0; turn < 6; ++turn) {
    steps.renew(7);
    steps.run({7, 0, 1, 2, 3});
    const um_swap_counters before = steps.device.swaps();
    steps.run({4, 5, 6, 0, 1, 7, 2});
    if (turn > 1) CHECK_EQ(steps.device.swaps().on_demand_swap_ins, before.on_demand_swap_ins);
  }
}
