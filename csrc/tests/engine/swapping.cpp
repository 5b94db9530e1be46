// Chunked memory through the C ABI: contents survive any traffic, plans are carried out, and a step that goes another
// way is slower but never wrong. Kernels here are stores and loads of this thread, as torch's are on this device.
#include <algorithm>
#include <random>
#include <string>

#include "engine/device.h"
#include "memory/address_map.h"
#include "swapping_fixture.h"

using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::read;
using test::Rounds;
using test::Swapping;
using test::write;

TEST(contents_survive_more_than_fits) {
  Swapping device(4);
  std::vector<test::Moving> blocks;
  for (int i = 0; i < 12; ++i) {
    blocks.push_back(device.chunks(1));
    device.fill(blocks.back(), kChunk, static_cast<unsigned char>(i + 1));
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 12; ++i)
      device.expect(blocks[static_cast<size_t>(i)], kChunk, static_cast<unsigned char>(i + 1));
  }
  const um_swap_counters swaps = device.swaps();
  CHECK_EQ(swaps.swap_outs, 12);  // what was only read since then left without a copy
  CHECK_EQ(swaps.swap_ins, 48);   // each was made on the host, where whoever has its address may have written to it
  CHECK_EQ(swaps.on_demand_swap_ins, 48);
  CHECK_EQ(swaps.swap_in_bytes, 48 * static_cast<int64_t>(kChunk));
  CHECK_EQ(swaps.silent_writes, 0);
  CHECK(swaps.used_peak_bytes <= 4 * kChunk);
}

TEST(a_write_that_no_op_announced_is_counted) {
  Swapping device(2);
  test::Moving block = device.chunks(2);
  device.fill(block, 2 * kChunk, 1);
  test::Moving other = device.chunks(2);
  device.fill(other, 2 * kChunk, 2);  // the first one leaves
  device.expect(block, 2 * kChunk, 1);
  CHECK_EQ(device.swaps().silent_writes, 0);
  device.op({read(block, 2 * kChunk)}, [&] { block[kChunk + 7] = block[kChunk + 8] = 3; });
  CHECK_EQ(device.swaps().silent_writes, 1);
  device.op({write(block, 2 * kChunk)}, [&] { block[0] = 4; });  // announced
  CHECK_EQ(device.swaps().silent_writes, 1);
}

TEST(data_goes_in_and_out_wherever_it_is) {
  Swapping device(2);
  std::vector<unsigned char> out(3 * kChunk);
  test::Moving block = device.chunks(2);
  const std::vector<unsigned char> in(2 * kChunk, 9);
  CHECK_OK(um_copy_from_host(block, in.data(), in.size()));  // on the host, and no chunk is taken for it
  CHECK_EQ(device.swaps().used_bytes, uint64_t{0});
  device.expect(block, 2 * kChunk, 9);
  CHECK_OK(um_copy_from_host(block + kChunk, std::vector<unsigned char>(16, 5).data(), 16));  // on the device
  CHECK_OK(um_copy_to_host(out.data(), block, 2 * kChunk));
  CHECK(out[0] == 9 && out[kChunk] == 5 && out[kChunk + 16] == 9);
  test::Moving other = device.chunks(2);
  device.fill(other, 2 * kChunk, 3);  // the first one leaves
  CHECK_OK(um_copy_to_host(out.data(), block, 2 * kChunk));
  CHECK(out[0] == 9 && out[kChunk] == 5 && out[kChunk + 16] == 9);
  CHECK_OK(um_copy_from_host(block, std::vector<unsigned char>(1, 77).data(), 1));
  device.op({read(block, 2 * kChunk)}, [&] { CHECK(block[0] == 77 && block[1] == 9 && block[kChunk] == 5); });
}

TEST(small_allocations_share_chunks_and_stay) {
  Swapping device(3);
  test::Moving small = device.allocate(1000, kChunked);
  device.fill(small, 1000, 1);
  test::Moving large = device.chunks(2);
  device.fill(large, 2 * kChunk, 2);
  test::Moving other = device.chunks(2);
  device.fill(other, 2 * kChunk, 3);
  CHECK(test::holds(small, 1, 1000));  // no op, no fault
  CHECK_EQ(device.swaps().pinned_bytes, kChunk);
  device.expect(large, 2 * kChunk, 2);
}

TEST(small_allocations_that_leave_share_chunks) {
  Swapping device(3);
  const uint64_t half = kChunk / 2;
  std::vector<test::Moving> some;
  for (unsigned char i = 0; i < 12; ++i) {
    some.push_back(device.allocate(half, kChunked));
    device.fill(some.back(), half, static_cast<unsigned char>(i + 1));
  }
  CHECK(device.swaps().swap_outs >= 6);  // no more than six fit
  for (unsigned char i = 0; i < 12; ++i) device.expect(some[i], half, static_cast<unsigned char>(i + 1));
  CHECK_EQ(device.swaps().silent_writes, 0);
  device.op({read(some[11], half)}, [&] { some[11][5] = 7; });  // beside one that no op was given
  CHECK_EQ(device.swaps().silent_writes, 1);
  for (int round = 0; round < 2; ++round) {
    device.fill(device.chunks(3), 3 * kChunk, 9);  // all of them leave
    device.op({read(some[11], half)}, [&] { CHECK(some[11][5] == 7 && some[11][6] == 12); });
  }
  CHECK_EQ(device.swaps().pinned_bytes, uint64_t{0});
}

// Each of them shared a chunk with one that does not come.
TEST(what_an_op_is_given_comes_packed_where_it_does_not_fit_as_it_lies) {
  Swapping device(2);
  const uint64_t half = kChunk / 2;
  std::vector<test::Moving> some;
  for (unsigned char i = 0; i < 8; ++i) {
    some.push_back(device.allocate(half, kChunked));
    device.fill(some.back(), half, static_cast<unsigned char>(i + 1));
  }
  const auto given = [&](const std::vector<size_t>& which) {
    std::vector<um_access> accesses;
    for (const size_t i : which) accesses.push_back(read(some[i], half));
    return accesses;
  };
  device.op(given({0, 3, 4, 7}), [&] {
    for (const size_t i : {0, 3, 4, 7}) CHECK(test::holds(some[i], static_cast<unsigned char>(i + 1), half));
  });
  const std::vector<um_access> more = given({0, 3, 4, 7, 1});
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY,
              um_op_begin(device, um_intern("aten::cat"), UM_PHASE_FORWARD, um_intern("layer"), 0, more.data(), 5));
  CHECK(std::string(um_last_error()).find("takes 6 MiB") != std::string::npos);
}

// The step ends, and its refusal tells the largest op of it.
TEST(refusals_that_are_put_off_tell_what_the_step_needs) {
  Swapping device(3);
  test::Moving one = device.chunks(2);
  test::Moving two = device.chunks(2);
  test::Moving three = device.chunks(3);
  CHECK_FAILS(UM_UNSUPPORTED, um_refusals_put_off(device));
  CHECK_OK(um_step_set(device, 1));
  device.fill(one, 2 * kChunk, 1);
  device.fill(two, 2 * kChunk, 2);
  device.fill(three, 3 * kChunk, 3);
  const auto both = [&] { return std::vector<um_access>{read(one, 2 * kChunk), write(two, 2 * kChunk)}; };
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_op_begin(device, um_intern("aten::add_"), 0, 0, 0, both().data(), 2));
  CHECK_OK(um_refusals_put_off(device));
  device.op(both(), [&] { std::memset(two, one[0] + two[0], 2 * kChunk); }, "aten::add_");
  device.op({read(one, 2 * kChunk), read(two, 2 * kChunk), read(three, 3 * kChunk)}, [] {}, "aten::cat");
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  const std::string message = um_last_error();
  CHECK(message.find("aten::cat") != std::string::npos && message.find("takes 14 MiB") != std::string::npos);
  CHECK(message.find("a budget of 30 MiB") != std::string::npos);
  device.expect(two, 2 * kChunk, 3);  // what was done is right
  CHECK_OK(um_step_set(device, 2));
  CHECK_OK(um_step_set(device, 0));
}

// What is refused first and then put off is one result, and what has found room is not in its own way.
TEST(refusals_that_are_put_off_count_what_ops_make_once) {
  Swapping device(3);
  test::Moving input = device.chunks(2);
  test::Moving small = device.chunks(1);
  CHECK_OK(um_step_set(device, 1));
  device.fill(input, 2 * kChunk, 1);
  device.fill(small, kChunk, 2);
  void* output = nullptr;
  device.op({read(input, 2 * kChunk)}, [&] {
    CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device, 2 * kChunk, &kChunked, nullptr, &output));
    CHECK_OK(um_refusals_put_off(device));
    for (int i = 0; i < 3; ++i) {  // it works on one at a time
      um_free(output);
      CHECK_OK(um_allocate(device, 2 * kChunk, &kChunked, nullptr, &output));
    }
  });
  um_free(output);
  device.op(
      {read(small, kChunk)}, [&] { CHECK_OK(um_allocate(device, 2 * kChunk, &kChunked, nullptr, &output)); },
      "aten::repeat");
  um_free(output);
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  const std::string message = um_last_error();
  CHECK(message.find("aten::repeat") == std::string::npos);
  CHECK(message.find("takes 8 MiB") != std::string::npos && message.find("and 0 bytes beside") != std::string::npos);
}

TEST(an_op_that_cannot_fit_is_refused_by_name) {
  Swapping device(3);
  test::Moving one = device.chunks(2);
  test::Moving two = device.chunks(2);
  const um_access accesses[] = {read(one, 2 * kChunk), write(two, 2 * kChunk)};
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY,
              um_op_begin(device, um_intern("aten::huge"), UM_PHASE_FORWARD, um_intern("layer"), 0, accesses, 2));
  const std::string message = um_last_error();
  CHECK(message.find("aten::huge") != std::string::npos && message.find("layer") != std::string::npos);
  CHECK(message.find("takes 8 MiB") != std::string::npos && message.find("the budget is 6 MiB") != std::string::npos);
  device.fill(one, 2 * kChunk, 4);  // nothing is pinned by the one that failed
  device.fill(two, 2 * kChunk, 5);
  device.expect(one, 2 * kChunk, 4);
}

constexpr um_placement kPaged{UM_MEMORY_MANAGED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

// The chunks' share alone is smaller than the budget that was refused.
TEST(a_refusal_names_a_budget_for_all_that_shares_it) {
  Swapping device(3);
  test::Moving one = device.chunks(2);
  test::Moving two = device.chunks(2);
  const auto refused_in = [&](uint64_t session_bytes) {
    const um_chunk_options options{3 * kChunk, 0, kChunk, 0, session_bytes};
    CHECK_OK(um_chunks_set(device, &options));
    const um_access accesses[] = {read(one, 2 * kChunk), write(two, 2 * kChunk)};
    CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_op_begin(device, um_intern("aten::add_"), 0, 0, 0, accesses, 2));
    return std::string(um_last_error());
  };
  CHECK(refused_in(0).find("a budget of 24 MiB") != std::string::npos);  // four chunks and 16 MiB
  CHECK(refused_in(3 * kChunk).find("a budget of 24 MiB") != std::string::npos);
  const test::Moving paged = device.allocate(5 * kMiB, kPaged);  // takes three chunks' worth of a larger one
  CHECK(refused_in(3 * kChunk).find("a budget of 24 MiB") != std::string::npos);  // chunks have all of it
  const std::string divided = refused_in(20 * kMiB);
  CHECK(divided.find("the budget is 20 MiB (20971520 bytes), of which chunks have 6 MiB") != std::string::npos);
  CHECK(divided.find("a budget of 30 MiB") != std::string::npos);
  CHECK(divided.find("later ops may need more") != std::string::npos);
  CHECK(refused_in(64 * kMiB).find("a budget of 66 MiB") != std::string::npos);
}

TEST(a_refused_step_names_a_budget_for_all_that_shares_it) {
  Swapping device(3);
  const test::Moving paged = device.allocate(kMiB, kPaged);
  test::Moving one = device.chunks(2);
  test::Moving two = device.chunks(2);
  const um_chunk_options options{3 * kChunk, 0, kChunk, 0, 5 * kChunk};
  CHECK_OK(um_chunks_set(device, &options));
  CHECK_OK(um_step_set(device, 1));
  CHECK_OK(um_refusals_put_off(device));
  device.op({read(one, 2 * kChunk), write(two, 2 * kChunk)}, [] {}, "aten::add_");
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_step_set(device, 0));
  const std::string message = um_last_error();
  CHECK(message.find("of which chunks have 6 MiB") != std::string::npos);
  CHECK(message.find("a budget of 28 MiB") != std::string::npos);  // unified memory has at least two blocks
}

TEST(an_output_that_cannot_fit_is_refused_with_the_ops_operands) {
  Swapping device(3);
  test::Moving input = device.chunks(2);
  device.op({read(input, 2 * kChunk)}, [&] {
    void* output = nullptr;
    CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device, 2 * kChunk, &kChunked, nullptr, &output));
    const std::string message = um_last_error();
    CHECK(message.find("takes 8 MiB") != std::string::npos && message.find("and 0 bytes beside") != std::string::npos);
  });
}

// Small allocations of every step find the chunks of the step before; they are nobody's in between.
TEST(memory_that_an_op_keeps_has_an_owner_where_it_is_shown_and_is_counted_where_not) {
  Swapping device(4);
  const test::Moving given = device.chunks(1);
  device.fill(given, kChunk, 1);
  const auto run = [&](bool shows) {
    const um_access access = read(given, kChunk);
    CHECK_OK(um_op_begin(device, um_intern("aten::sin_"), UM_PHASE_FORWARD, 0, 0, &access, 1));
    const test::Moving kept = device.chunks(1);
    std::memset(kept, 3, kChunk);
    device.free(device.chunks(1));
    const um_shown output = test::shown(kept);
    CHECK_EQ(um_op_end(device, &output, shows ? 1 : 0), shows ? 0u : 1u);
    return kept;
  };
  const test::Moving shown = run(true), unknown = run(false);
  CHECK_EQ(test::Device::at(shown).owned, 1u);
  CHECK_EQ(test::Device::at(unknown).owned, 0u);
  const test::Moving large = device.chunks(3);  // beside what no storage shows
  device.fill(large, 3 * kChunk, 2);
  CHECK_EQ(device.swaps().used_bytes, 4 * kChunk);
  device.expect(unknown, kChunk, 3);
  CHECK_EQ(test::Device::at(unknown).owned, 1u);
}

TEST(chunks_of_small_allocations_are_kept_until_somebody_needs_them) {
  Swapping device(4);
  const test::Moving staying = device.allocate(1000, kChunked);
  const uint64_t largest = (uint64_t{64} << 10) - 512;
  const auto step = [&] {
    std::vector<test::Moving> some;
    for (uint64_t bytes = 0; bytes < kChunk; bytes += largest) some.push_back(device.allocate(largest, kChunked));
    CHECK_EQ(device.swaps().pinned_bytes, 2 * kChunk);
    for (const test::Moving& each : some) device.free(each);
    CHECK_EQ(device.swaps().pinned_bytes, kChunk);
  };
  step();
  const uint64_t mapped = um_emulated_calls(device, "cuMemMap");
  step();
  CHECK_EQ(um_emulated_calls(device, "cuMemMap"), mapped);
  device.fill(device.chunks(3), 3 * kChunk, 1);  // it needs all that is left
  device.free(staying);
  CHECK_EQ(device.swaps().used_bytes, 3 * kChunk);
}

TEST(exports_stay) {
  Swapping device(2);
  test::Moving block = device.chunks(1);
  device.fill(block, kChunk, 1);
  CHECK_OK(um_export(block, nullptr));
  for (int i = 0; i < 4; ++i) device.fill(device.chunks(1), kChunk, 2);
  CHECK(test::holds(block, 1, kChunk));
  std::memset(block, 6, kChunk);  // by somebody outside
  CHECK_OK(um_export_release(block));
  for (int i = 0; i < 4; ++i) device.fill(device.chunks(1), kChunk, 2);
  device.expect(block, kChunk, 6);
}

TEST(a_smaller_budget_holds_at_once) {
  Swapping device(8);
  std::vector<test::Moving> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(device.chunks(1));
    device.fill(blocks.back(), kChunk, static_cast<unsigned char>(i));
  }
  device.set_budget(3);
  CHECK(device.swaps().used_bytes <= 3 * kChunk);
  for (int i = 0; i < 8; ++i) device.expect(blocks[static_cast<size_t>(i)], kChunk, static_cast<unsigned char>(i));
  device.set_budget(8);
  CHECK_EQ(device.swaps().budget_bytes, 8 * kChunk);
}

TEST(a_plan_brings_in_time) {
  Swapping device(2);
  const Rounds rounds(device);
  fixture::Plan plan(rounds.trace);  // while one is used the next one comes
  for (int32_t op = 0; op < 4; ++op) {
    plan.before(op, UM_PLAN_SWAP_IN, (op + 1) % 4);
    plan.behind(op, UM_PLAN_SWAP_OUT, op);
  }
  const um_plan columns = plan.columns();
  rounds.set(device, &columns);
  for (uint32_t step = 1; step < 4; ++step) rounds.run(device, step);  // until it is where the plan leaves it
  std::vector<unsigned char> out(kChunk);  // and all contents are on the host: no departure takes time any more
  for (const test::Moving& block : rounds.blocks) CHECK_OK(um_copy_to_host(out.data(), block, kChunk));
  const um_swap_counters before = device.swaps();
  for (uint32_t step = 4; step < 12; ++step) rounds.run(device, step);
  const um_swap_counters after = device.swaps();
  CHECK_EQ(after.evictions, before.evictions);
  CHECK_EQ(after.on_demand_swap_ins, before.on_demand_swap_ins);
  CHECK_EQ(after.cancelled, before.cancelled);
  // Where a step ends, the first arrival of the next one may have begun or not.
  CHECK(std::abs(after.swap_ins - before.swap_ins - 4 * 8) <= 1);
  CHECK(std::abs(after.clean_drops - before.clean_drops - 4 * 8) <= 1);
  CHECK_EQ(after.swap_outs, before.swap_outs);
  CHECK_EQ(after.programs_followed, uint64_t{11});
  CHECK_EQ(after.skipped_actions, 0);
  CHECK_EQ(after.program, uint32_t{UM_PROGRAM_WAITING});
}

TEST(what_a_plan_orders_too_late_or_for_nothing_is_counted) {
  Swapping device(2);
  const Rounds rounds(device);
  fixture::Plan plan(rounds.trace);
  for (int32_t op = 0; op < 4; ++op) {
    if (op == 0) plan.before(op, UM_PLAN_SWAP_IN, 1);  // for nothing
    if (op == 3) plan.before(op, UM_PLAN_SWAP_IN, 3);  // too late
    plan.behind(op, UM_PLAN_SWAP_OUT, op);
    if (op == 0) plan.behind(op, UM_PLAN_SWAP_OUT, 1);
  }
  const um_plan columns = plan.columns();
  rounds.set(device, &columns);
  rounds.run(device, 1);
  const um_swap_counters before = device.swaps();
  for (uint32_t step = 2; step < 6; ++step) rounds.run(device, step);
  const um_swap_counters after = device.swaps();
  CHECK_EQ(after.late_swap_ins - before.late_swap_ins, 4);
  CHECK_EQ(after.unused_swap_ins - before.unused_swap_ins, 4);
}

TEST(what_is_used_furthest_ahead_leaves) {
  Swapping device(3);
  const Rounds rounds(device);
  rounds.set(device, nullptr);
  for (uint32_t step = 1; step < 3; ++step) rounds.run(device, step);
  const um_swap_counters before = device.swaps();
  for (uint32_t step = 3; step < 12; ++step) rounds.run(device, step);
  const um_swap_counters after = device.swaps();
  // Belady on a cycle of 4 in 3 places misses once in 3 uses; least recently used would miss every time.
  CHECK(std::abs(after.swap_ins - before.swap_ins - 9 * 4 / 3) <= 1);
}

TEST(what_no_action_is_about_may_change_places) {
  Swapping device(4);
  const Rounds rounds(device);
  fixture::Plan plan(rounds.trace);
  for (int32_t op = 0; op < 2; ++op) plan.behind(op, UM_PLAN_SWAP_OUT, op);
  const um_plan columns = plan.columns();
  rounds.set(device, &columns);
  rounds.run(device, 1);
  rounds.run(device, 2, {0, 1, 3, 2});
  rounds.run(device, 3);
  CHECK_EQ(device.swaps().programs_followed, uint64_t{3});
  rounds.set(device, &columns, true);  // but not where ops are told by what they are given
  rounds.run(device, 4);
  rounds.run(device, 5, {1, 0, 2, 3});
  CHECK_EQ(device.swaps().program, uint32_t{UM_PROGRAM_DIVERGED});
  CHECK_EQ(device.swaps().diverged_op, uint32_t{1});
  CHECK_EQ(device.swaps().unknown_ops, uint32_t{0});
}

TEST(ops_that_touch_nothing_of_the_device_come_and_go) {
  Swapping device(2);
  Rounds rounds(device, 2);
  for (const char* name : {"load", "log"}) {
    rounds.trace.use(1000, {});
    rounds.names.push_back(um_intern(name));
  }
  rounds.trace.use(1000, {0});
  rounds.names.push_back(um_intern("expect"));
  fixture::Plan plan(rounds.trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, 0);
  plan.before(3, UM_PLAN_SWAP_IN, 0);
  const um_plan columns = plan.columns();
  rounds.set(device, &columns);
  const auto step = [&](uint32_t number, const std::vector<const char*>& between) {
    CHECK_OK(um_step_set(device, number));
    for (int i = 0; i < 2; ++i)
      device.expect(rounds.blocks[static_cast<size_t>(i)], kChunk, static_cast<unsigned char>(i + 1));
    for (const char* name : between) device.op({}, [] {}, name);
    device.expect(rounds.blocks[0], kChunk, 1);
    CHECK_OK(um_step_set(device, 0));
  };
  step(1, {"load", "log"});
  std::vector<unsigned char> out(kChunk);  // its contents are on the host then: no departure takes time
  CHECK_OK(um_copy_to_host(out.data(), rounds.blocks[0], kChunk));
  const um_swap_counters before = device.swaps();
  step(2, {});
  step(3, {"log"});
  step(4, {"sample", "load", "load", "log", "sample"});
  const um_swap_counters after = device.swaps();
  CHECK_EQ(after.programs_followed - before.programs_followed, uint64_t{3});
  CHECK_EQ(after.actions - before.actions, 2 * 3);
  CHECK_EQ(after.cancelled - before.cancelled, 3);  // nobody took the memory
  CHECK_EQ(after.on_demand_swap_ins, before.on_demand_swap_ins);
}

TEST(another_way_is_noticed_and_right) {
  Swapping device(2);
  const Rounds rounds(device);
  fixture::Plan plan(rounds.trace);
  for (int32_t op = 0; op < 4; ++op) plan.behind(op, UM_PLAN_SWAP_OUT, op);
  const um_plan columns = plan.columns();
  rounds.set(device, &columns, true);
  rounds.run(device, 1);
  rounds.run(device, 2, {0, 1, 3, 2});
  CHECK_EQ(device.swaps().program, uint32_t{UM_PROGRAM_DIVERGED});
  CHECK_EQ(device.swaps().diverged_op, uint32_t{3});
  CHECK_EQ(device.swaps().jumps, uint32_t{2});  // over one op, and back to it
  rounds.run(device, 3, {0, 1});
  CHECK_EQ(device.swaps().program, uint32_t{UM_PROGRAM_DIVERGED});
  rounds.run(device, 4);
  CHECK_EQ(device.swaps().program, uint32_t{UM_PROGRAM_WAITING});
  CHECK_EQ(device.swaps().programs_followed, uint64_t{2});
  CHECK_OK(um_program_drop(device, 0));
  CHECK_EQ(device.swaps().program, uint32_t{UM_PROGRAM_NONE});
}

// A program of the rounds without what goes on from step to step, in the place of another one where that is not 0.
uint32_t added(Swapping& device, const Rounds& rounds, const um_plan* plan, uint32_t replaces) {
  const um_trace trace = rounds.trace.columns();
  const std::vector<uint64_t> unknown(rounds.serials.size());
  um_program program{};
  program.trace = &trace;
  program.plan = plan;
  program.op_name = rounds.names.data();
  program.first_serials = unknown.data();
  program.replaces = replaces;
  uint32_t number = 0;
  CHECK_OK(um_program_add(device, &program, &number));
  return number;
}

TEST(another_plan_takes_the_place_of_a_program) {
  Swapping device(4);
  const Rounds rounds(device);
  rounds.set(device, nullptr);
  for (uint32_t step = 1; step < 3; ++step) rounds.run(device, step);
  const um_swap_counters before = device.swaps();
  fixture::Plan plan(rounds.trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, 0);
  plan.before(3, UM_PLAN_SWAP_IN, 0);
  const um_plan columns = plan.columns();
  CHECK_EQ(added(device, rounds, &columns, before.program_number), before.program_number);
  rounds.run(device, 3);  // which allocation is which is known from the step before
  const um_swap_counters after = device.swaps();
  CHECK_EQ(after.program_number, before.program_number);
  CHECK_EQ(after.programs_followed, uint64_t{3});
  CHECK_EQ(after.actions, 2);
  CHECK_EQ(after.skipped_actions, 0);
  um_program none{};
  const um_trace trace = rounds.trace.columns();
  none.trace = &trace;
  none.replaces = before.program_number + 1;
  uint32_t number = 0;
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_program_add(device, &none, &number));
}

TEST(a_step_begins_with_what_is_expected) {
  Swapping device(4);
  const Rounds rounds(device);
  const uint32_t first = added(device, rounds, nullptr, 0), second = added(device, rounds, nullptr, 0);
  CHECK_OK(um_program_expect(device, first));
  rounds.run(device, 1);
  CHECK_EQ(device.swaps().program_number, first);
  CHECK_OK(um_program_expect(device, second));
  rounds.run(device, 2);
  CHECK_EQ(device.swaps().program_number, second);
  rounds.run(device, 3);
  CHECK_OK(um_program_expect(device, first));  // but what comes after such a step is known by now
  rounds.run(device, 4);
  CHECK_EQ(device.swaps().program_number, second);
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_program_expect(device, second + 1));
}

TEST(host_memory_has_a_budget) {
  Swapping device(2, 3 * kChunk);
  std::vector<test::Moving> blocks;
  for (unsigned char i = 0; i < 4; ++i) {
    blocks.push_back(device.chunks(1));
    device.fill(blocks.back(), kChunk, i);
  }
  test::Moving fifth = device.chunks(1);  // where two are already; the two on the device cannot join them
  CHECK_EQ(device.swaps().host_bytes, 3 * kChunk);
  const um_access access = write(fifth, kChunk);
  CHECK_FAILS(UM_OUT_OF_HOST_MEMORY, um_op_begin(device, um_intern("op"), UM_PHASE_FORWARD, 0, 0, &access, 1));
  device.free(blocks[0]);
  device.fill(fifth, kChunk, 6);
  for (unsigned char i = 1; i < 4; ++i) device.expect(blocks[i], kChunk, i);
  device.expect(fifth, kChunk, 6);
  CHECK_EQ(device.swaps().host_peak_bytes, 3 * kChunk);
}

// Blocks of random sizes, written, read, freed and made under a small budget, with plans that say anything.
TEST(random_traffic_keeps_every_byte) {
  std::mt19937 random(20261122);
  for (int round = 0; round < 12; ++round) {
    Swapping device(4 + random() % 6, 0, round % 3 == 0 ? 300 : 0);
    struct Live {
      test::Moving block;
      uint64_t bytes;
      unsigned char value;
    };
    std::vector<Live> live;
    for (int turn = 0; turn < 150; ++turn) {
      const uint32_t what = random() % 8;
      if (live.size() < 3 || (what == 0 && live.size() < 14)) {
        const uint64_t bytes = 1 + random() % (random() % 3 == 0 ? kMiB / 2 : 2 * kChunk);
        live.push_back({device.allocate(bytes, kChunked), bytes, static_cast<unsigned char>(random())});
        device.fill(live.back().block, bytes, live.back().value);
        continue;
      }
      const size_t chosen = random() % live.size();
      Live& each = live[chosen];
      if (what == 1) {
        device.free(each.block);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(chosen));
      } else if (what == 2) {
        each.value = static_cast<unsigned char>(random());
        device.fill(each.block, each.bytes, each.value);
      } else if (what == 3) {
        CHECK_OK(um_prefetch(each.block, each.bytes, random() % 2, nullptr));
      } else if (what == 4) {
        std::vector<unsigned char> out(each.bytes);
        CHECK_OK(um_copy_to_host(out.data(), each.block, each.bytes));
        CHECK(test::holds(out.data(), each.value, each.bytes));
      } else if (what == 5) {
        each.value = static_cast<unsigned char>(random());
        CHECK_OK(um_copy_from_host(each.block, std::vector<unsigned char>(each.bytes, each.value).data(), each.bytes));
      } else {
        device.expect(each.block, each.bytes, each.value);
      }
      CHECK(device.swaps().used_bytes <= device.swaps().budget_bytes);
    }
    for (const Live& each : live) device.expect(each.block, each.bytes, each.value);
    CHECK_EQ(device.swaps().silent_writes, 0);
    while (!device.live.empty()) device.free(device.live.back());
    CHECK_OK(um_memory_trim(device));
    CHECK_EQ(device.swaps().used_bytes, uint64_t{0});
    CHECK_EQ(device.swaps().host_bytes, uint64_t{0});
  }
}

// As on a GPU: kernels are only given to streams, and run later. What leaves, and what takes its place, waits for them.
TEST(kernels_in_several_streams_are_waited_for) {
  Swapping device(3, 0, 400);
  const um::driver::Table& call = device.handle->backend.driver->call;
  um_device_info info{};
  CHECK_OK(um_device_query(device, &info));
  um::driver::CUcontext context{};
  CHECK_EQ(call.device_primary_ctx_retain(&context, info.ordinal), 0u);
  CHECK_EQ(call.ctx_set_current(context), 0u);
  um::driver::CUstream streams[2];
  for (um::driver::CUstream& stream : streams)
    CHECK_EQ(call.stream_create(&stream, um::driver::CU_STREAM_NON_BLOCKING), 0u);
  std::mt19937 random(3);
  struct Live {
    test::Moving block;
    unsigned char value;
    size_t stream;  // that wrote to it last
  };
  std::vector<Live> live;
  const auto launch = [&](Live& each, size_t in, bool writes) {
    // The program orders its own streams; umadvise orders what it moves.
    if (in != each.stream) CHECK_OK(um_stream_wait(device, streams[in], streams[each.stream]));
    um_op_stream_set(streams[in]);
    const um_access access = writes ? write(each.block, kChunk) : read(each.block, kChunk);
    CHECK_OK(um_op_begin(device, um_intern("kernel"), UM_PHASE_FORWARD, 0, 0, &access, 1));
    if (writes) {
      each.value = static_cast<unsigned char>(random());
      CHECK_EQ(call.memset_d8_async(um::address_of(each.block), each.value, kChunk, streams[in]), 0u);
      each.stream = in;
    }
    const um_shown output = shown(each.block);
    um_op_end(device, &output, 1);
    um_op_stream_set(nullptr);
  };
  std::vector<unsigned char> out(kChunk);
  for (int turn = 0; turn < 120; ++turn) {
    if (live.size() < 3 || (live.size() < 8 && random() % 4 == 0)) {
      live.push_back({device.chunks(1), 0, random() % 2});
      launch(live.back(), live.back().stream, true);
      continue;
    }
    const size_t chosen = random() % live.size();
    Live& each = live[chosen];
    if (random() % 6 == 0) {
      device.free(each.block);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(chosen));
    } else {
      launch(each, random() % 2, random() % 2);
    }
  }
  for (Live& each : live) {
    CHECK_EQ(call.stream_synchronize(streams[each.stream]), 0u);
    CHECK_OK(um_copy_to_host(out.data(), each.block, kChunk));
    CHECK(test::holds(out.data(), each.value, kChunk));
  }
  for (um::driver::CUstream stream : streams) CHECK_EQ(call.stream_synchronize(stream), 0u);
  CHECK_EQ(device.swaps().silent_writes, 0);
  while (!device.live.empty()) device.free(device.live.back());
  for (um::driver::CUstream stream : streams) CHECK_EQ(call.stream_destroy(stream), 0u);
  CHECK_EQ(call.ctx_set_current(nullptr), 0u);
  CHECK_EQ(call.device_primary_ctx_release(info.ordinal), 0u);
}

// An extension that is no op takes a tensor's address, then asks torch for memory, then uses both.
TEST(an_op_that_only_creates_takes_no_memory_from_under_a_raw_address) {
  Swapping device(2);
  test::Moving one = device.chunks(1), two = device.chunks(1);
  device.fill(one, kChunk, 1);
  device.fill(two, kChunk, 2);
  unsigned char *const first = one, *const second = two;
  test::Moving made;
  device.op({}, [&] { made = device.allocate(kChunk, kChunked); }, "aten::empty", true);
  std::memset(made, 3, kChunk);
  CHECK(test::holds(first, 1, kChunk) && test::holds(second, 2, kChunk));
  CHECK(static_cast<unsigned char*>(one) == first && static_cast<unsigned char*>(two) == second);
  std::memset(first, 4, kChunk);
  device.expect(made, kChunk, 3);  // now one of them leaves
  device.expect(one, kChunk, 4);
  device.expect(two, kChunk, 2);
}
