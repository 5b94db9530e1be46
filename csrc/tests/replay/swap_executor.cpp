// Explicit swapping, cases worked by hand: one byte takes one nanosecond on the link, times are small numbers.
#include "check.h"
#include "swap_fixture.h"

using namespace fixture;

namespace {

// Two activations made, two big ops without them, both used: the classic.
struct Forward {
  Trace trace;
  int32_t a, b, work;
  Forward() {
    a = trace.make(100, 50);
    b = trace.make(100, 50);
    work = trace.use(100, {b});
    trace.use(100, {a});  // op 3
    trace.free(a);
    trace.free(b);
  }
};

}  // namespace

TEST(without_a_plan_and_with_room_time_is_the_sum_of_the_ops) {
  Forward forward;
  const Run made = run(forward.trace, nullptr, options(100));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.step_ns(), 400);
  CHECK_EQ(made.result.total_ns, 400);
  CHECK_EQ(made.result.peak_live_bytes, 100);
  CHECK_EQ(made.result.peak_op, 1);
}

TEST(a_swap_behind_work_costs_nothing) {
  Forward forward;
  Plan plan(forward.trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, forward.a).before(2, UM_PLAN_SWAP_IN, forward.a);
  const Run made = run(forward.trace, &plan, options(100));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.step_ns(), 400);
  CHECK_EQ(made.result.swap_out_bytes, 50);
  CHECK_EQ(made.result.swap_in_bytes, 50);
  CHECK_EQ(made.copy_of(forward.a, UM_TRACK_D2H)->start_ns, 100);  // when its op has ended
  CHECK_EQ(made.copy_of(forward.a, UM_TRACK_H2D)->start_ns, 200);  // not before its anchor
  CHECK_EQ(made.result.on_demand_swap_ins, 0);
}

TEST(an_op_waits_for_what_it_touches) {
  Forward forward;
  Plan plan(forward.trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, forward.a).before(3, UM_PLAN_SWAP_IN, forward.a);
  const Run made = run(forward.trace, &plan, options(100));
  CHECK_EQ(made.result.wait_copy_ns, 50);
  CHECK_EQ(made.step_ns(), 450);
}

TEST(what_no_plan_brings_comes_on_demand) {
  Forward forward;
  Plan plan(forward.trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, forward.a);
  const Run made = run(forward.trace, &plan, options(100));
  CHECK_EQ(made.step_ns(), 450);
  CHECK_EQ(made.result.on_demand_swap_ins, 1);
}

// Budget of 100 with 50 + 50: the second activation waits for the first to leave when the copy is slow.
TEST(an_allocation_waits_for_a_running_swap_out) {
  Trace trace;
  const int32_t a = trace.make(10, 60);
  const int32_t b = trace.make(10, 60, {});
  trace.use(10, {b});
  trace.free(b);
  trace.use(10, {a});
  Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, a).behind(2, UM_PLAN_SWAP_IN, a);
  const Run made = run(trace, &plan, options(100));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.wait_room_ns, 60);  // from 10 to 70
  CHECK_EQ(made.result.wait_copy_ns, 60);  // from 90, when b is gone, to 150
  CHECK_EQ(made.step_ns(), 160);
  CHECK_EQ(made.result.peak_live_bytes, 60);
}

// The swap-in is asked for while b is alive: it waits in its queue, and the ops before its use do not.
TEST(a_swap_in_waits_for_room_without_stopping_ops) {
  Trace trace;
  const int32_t a = trace.make(100, 60);
  const int32_t b = trace.make(100, 60);
  trace.use(100, {b});
  trace.free(b);
  trace.use(100, {});  // 3
  trace.use(100, {a});
  Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, a).before(1, UM_PLAN_WAIT, a).before(2, UM_PLAN_SWAP_IN, a);
  const Run made = run(trace, &plan, options(100));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.wait_room_ns, 60);                  // the plan's wait
  CHECK_EQ(made.copy_of(a, UM_TRACK_H2D)->start_ns, 360);  // b died after op 2
  CHECK_EQ(made.step_ns(), 560);
}

// Both copies take 60 ns alone, each speed halves while both run. Out: alone from 10 to 50, its other 20 bytes to 90.
// In: 20 bytes from 50 to 90, its other 40 alone to 130.
TEST(directions_share_the_link) {
  Trace trace;
  const int32_t a = trace.allocate(60), b = trace.allocate(60);
  trace.use(10, {a}, kRW);
  trace.use(40, {});
  trace.use(10, {});
  trace.use(10, {b});
  Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, a).before(2, UM_PLAN_SWAP_IN, b);
  um_link link = plain_link();
  link.both_bytes_per_s[0] = link.both_bytes_per_s[1] = 0.5e9;
  const Run made = run(trace, &plan, options(200), link);
  CHECK_EQ(made.copy_of(a, UM_TRACK_D2H)->start_ns, 10);
  CHECK_EQ(made.copy_of(a, UM_TRACK_D2H)->duration_ns, 40 + 40);
  CHECK_EQ(made.copy_of(b, UM_TRACK_H2D)->start_ns, 50);
  CHECK_EQ(made.copy_of(b, UM_TRACK_H2D)->duration_ns, 40 + 40);
  CHECK_EQ(made.step_ns(), 130 + 10);
}

TEST(two_engines_share_a_direction_and_hide_fixed_costs) {
  Trace trace;
  const int32_t a = trace.allocate(60), b = trace.allocate(60);
  trace.use(0, {});
  trace.use(0, {a, b});
  Plan plan(trace);
  plan.before(0, UM_PLAN_SWAP_IN, a).before(0, UM_PLAN_SWAP_IN, b);
  um_link link = plain_link();
  link.fixed_ns[0] = 10;
  CHECK_EQ(run(trace, &plan, options(200), link).step_ns(), 140);
  link.engines[0] = 2;
  const Run made = run(trace, &plan, options(200), link);
  CHECK_EQ(made.step_ns(), 130);
  CHECK_EQ(made.copy_of(a, UM_TRACK_H2D)->engine + made.copy_of(b, UM_TRACK_H2D)->engine, 1);
}

TEST(a_use_cancels_a_swap_out_that_runs) {
  Trace trace;
  const int32_t a = trace.make(10, 60);
  trace.use(10, {a});       // while it leaves
  trace.use(10, {a}, kRW);  // must not change what is being copied
  trace.use(10, {a});
  Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, a);
  const Run made = run(trace, &plan, options(60));
  CHECK_EQ(made.result.cancelled, 1);
  CHECK_EQ(made.result.wait_copy_ns, 50);  // the write, from 20 to 70
  CHECK_EQ(made.step_ns(), 90);
  CHECK_EQ(made.result.swap_in_bytes, 0);
}

TEST(a_swap_out_that_has_not_started_is_taken_back) {
  Trace trace;
  const int32_t a = trace.make(10, 60), b = trace.make(0, 60);
  trace.use(10, {b}, kRW);
  Plan plan(trace);
  plan.behind(1, UM_PLAN_SWAP_OUT, a).behind(1, UM_PLAN_SWAP_OUT, b);
  const Run made = run(trace, &plan, options(120));
  CHECK_EQ(made.step_ns(), 20);
  CHECK_EQ(made.result.swap_out_bytes, 60);
  CHECK_EQ(made.result.cancelled, 1);
}

TEST(what_the_host_still_has_leaves_without_a_copy) {
  Trace trace;
  const int32_t a = trace.make(10, 60);
  trace.use(100, {});
  trace.use(10, {a});  // 2
  trace.use(100, {});
  trace.use(10, {a}, kRW);  // 4: now it differs
  trace.use(100, {});
  trace.use(10, {a});
  Plan plan(trace);
  for (const int32_t op : {0, 2, 4}) plan.behind(op, UM_PLAN_SWAP_OUT, a).behind(op + 1, UM_PLAN_SWAP_IN, a);
  const Run made = run(trace, &plan, options(60));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.clean_drops, 1);
  CHECK_EQ(made.result.swap_out_bytes, 120);
  CHECK_EQ(made.result.swap_in_bytes, 180);
}

TEST(what_is_written_whole_needs_no_copy_to_the_device) {
  Trace trace;
  const int32_t a = trace.make(10, 60);
  trace.use(100, {});
  trace.use(10, {a}, kWholeWrite);
  Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, a);
  const Run made = run(trace, &plan, options(60));
  CHECK_EQ(made.step_ns(), 120);
  CHECK_EQ(made.result.swap_ins, 0);
}

// c = g(f(a)): both intermediates dropped, c made again, its input for as long as it is needed.
TEST(recomputation_runs_the_ops_again) {
  Trace trace;
  const int32_t a = trace.make(10, 30);
  const int32_t b = trace.make(20, 30, {a});
  const int32_t c = trace.make(30, 30, {b});
  trace.use(40, {});  // 3
  trace.use(50, {c});
  trace.free(b);
  trace.free(c);
  Plan plan(trace);
  plan.behind(2, UM_PLAN_DROP, b).behind(2, UM_PLAN_DROP, c).before(4, UM_PLAN_RECOMPUTE, c, 1);
  const Run made = run(trace, &plan, options(90));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.recompute_ns, 50);
  CHECK_EQ(made.result.recomputed_ops, 2);
  CHECK_EQ(made.step_ns(), 200);
  CHECK_EQ(made.result.peak_live_bytes, 90);
}

TEST(recomputation_that_would_see_other_values_is_refused) {
  Trace trace;
  const int32_t a = trace.make(10, 30);
  const int32_t b = trace.make(20, 30, {a});
  trace.use(10, {a}, kRW);
  trace.use(50, {b});
  Plan plan(trace);
  plan.behind(1, UM_PLAN_DROP, b).before(3, UM_PLAN_RECOMPUTE, b, 1);
  CHECK(run(trace, &plan, options(90)).error.find("has been overwritten since") != std::string::npos);
}

// The range would bring back what a was before op 1, and op 2 would read that.
TEST(recomputation_that_would_leave_other_values_is_refused) {
  Trace trace;
  trace.op(10);
  const int32_t a = trace.allocate(30), b = trace.allocate(30);
  for (const int32_t each : {a, b}) trace.access(each, fixture::kWholeWrite);
  trace.end();
  trace.use(10, {a}, kRW);
  trace.use(10, {a, b});
  Plan plan(trace);
  plan.behind(0, UM_PLAN_DROP, b).before(2, UM_PLAN_RECOMPUTE, b, 0);
  CHECK(run(trace, &plan, options(90)).error.find("storage 0 has been overwritten since") != std::string::npos);
}

// Op 1 reads a; op 2, in the range too, has changed it.
TEST(recomputation_of_what_its_own_ops_have_overwritten_is_refused) {
  Trace trace;
  const int32_t a = trace.make(10, 30);
  const int32_t b = trace.make(20, 30, {a});
  trace.use(10, {a, b}, kRW);
  trace.use(10, {b});
  Plan plan(trace);
  plan.behind(2, UM_PLAN_DROP, b).before(3, UM_PLAN_RECOMPUTE, b, 1);
  CHECK(run(trace, &plan, options(90)).error.find("op 1 cannot run again: storage 0") != std::string::npos);
  Plan longer(trace);  // what makes a anew makes it what it was
  longer.behind(2, UM_PLAN_DROP, b).before(3, UM_PLAN_RECOMPUTE, b, 0);
  CHECK_EQ(run(trace, &longer, options(90)).error, "");
}

// a is made within the range, though no write of it is known to be of all bytes.
TEST(recomputation_from_the_birth_of_what_it_reads) {
  Trace trace;
  trace.op(10);
  const int32_t a = trace.allocate(30);
  trace.access(a, kW);
  trace.end();
  trace.use(10, {a}, kRW);
  const int32_t b = trace.make(10, 30, {a});
  trace.use(10, {b});
  Plan plan(trace);
  plan.behind(2, UM_PLAN_DROP, b).before(3, UM_PLAN_RECOMPUTE, b, 0);
  CHECK_EQ(run(trace, &plan, options(90)).error, "");
  Plan later(trace);
  later.behind(2, UM_PLAN_DROP, b).before(3, UM_PLAN_RECOMPUTE, b, 1);
  CHECK(run(trace, &later, options(90)).error.find("op 1 cannot run again: storage 0") != std::string::npos);
}

TEST(recomputation_of_what_the_host_has_written_is_refused) {
  Trace trace;
  const int32_t a = trace.make(10, 30);
  trace.event(2, a, 30);
  const int32_t b = trace.make(20, 30, {a});
  trace.use(10, {b});
  Plan plan(trace);
  plan.behind(1, UM_PLAN_DROP, b).before(2, UM_PLAN_RECOMPUTE, b, 0);
  CHECK(run(trace, &plan, options(90)).error.find("the host has written storage 0") != std::string::npos);
  Plan shorter(trace);
  shorter.behind(1, UM_PLAN_DROP, b).before(2, UM_PLAN_RECOMPUTE, b, 1);
  CHECK_EQ(run(trace, &shorter, options(90)).error, "");
}

// Op 0 makes e, which op 2 writes first; in between op 1 has memory of its own.
TEST(what_runs_again_holds_what_an_op_makes_for_a_later_one) {
  Trace trace;
  trace.op(10);
  const int32_t e = trace.allocate(30);
  trace.end();
  const int32_t x = trace.make(10, 30);
  trace.free(x);
  trace.use(10, {e}, fixture::kWholeWrite);
  const int32_t t = trace.make(10, 30, {e});
  trace.free(e);
  const int32_t z = trace.make(10, 40);
  trace.use(10, {t, z});
  Plan plan(trace);
  plan.behind(3, UM_PLAN_DROP, t).before(5, UM_PLAN_RECOMPUTE, t, 0);
  CHECK(run(trace, &plan, options(99)).error.find("no room for storage 1") != std::string::npos);
  CHECK_EQ(run(trace, &plan, options(100)).error, "");
}

TEST(a_use_of_dropped_contents_is_refused) {
  Forward forward;
  Plan plan(forward.trace);
  plan.behind(0, UM_PLAN_DROP, forward.a);
  CHECK(run(forward.trace, &plan, options(100)).error.find("op 3 needs storage 0") != std::string::npos);
}

TEST(no_room_and_nothing_that_will_leave_is_a_diagnosis) {
  Forward forward;
  const Run made = run(forward.trace, nullptr, options(99));
  CHECK(made.error.find("op 1: no room for storage 1") != std::string::npos);
  CHECK_EQ(made.result.failed_op, 1);
  CHECK_EQ(made.result.working_set_bytes, 50);
  CHECK_EQ(made.result.budget_needed_bytes, 100);
}

// The swap-in for later finds no room, and the op needs what queues behind it: it is overtaken.
TEST(a_swap_in_for_later_does_not_block_one_that_is_needed) {
  Trace trace;
  const int32_t big = trace.allocate(90), small = trace.allocate(20), rest = trace.allocate(30);
  trace.use(10, {rest});
  trace.use(10, {small});
  trace.free(small);
  trace.free(rest);
  trace.use(10, {big});
  Plan plan(trace);
  plan.before(0, UM_PLAN_SWAP_IN, big).before(0, UM_PLAN_SWAP_IN, small);
  const Run made = run(trace, &plan, options(100));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.step_ns(), 10 + 20 + 10 + 90 + 10);
}

TEST(evictions_on_demand_take_what_is_used_furthest_ahead) {
  Trace trace;
  const int32_t a = trace.make(10, 50), b = trace.make(10, 50);
  const int32_t c = trace.make(10, 50);
  trace.use(10, {c, a});
  trace.free(c);
  trace.use(10, {b});
  const Run furthest = run(trace, nullptr, options(100, UM_EVICT_FURTHEST));
  CHECK_EQ(furthest.error, "");
  CHECK(furthest.copy_of(b, UM_TRACK_D2H) != nullptr && furthest.copy_of(a, UM_TRACK_D2H) == nullptr);
  CHECK_EQ(furthest.step_ns(), 50 + 50 + 50);
  const Run recent = run(trace, nullptr, options(100, UM_EVICT_LEAST_RECENT));
  CHECK(recent.copy_of(a, UM_TRACK_D2H) != nullptr);
  CHECK_EQ(recent.step_ns(), 50 + 50 + (50 + 50) + 50);  // a out; b out and a in; b in when c is gone
}

TEST(a_trace_repeats_and_its_successors_carry_on) {
  Trace trace;
  const int32_t old_gradient = trace.allocate(40);
  const int32_t parameter = trace.allocate(40);
  trace.free(old_gradient);
  const int32_t gradient = trace.make(10, 40, {parameter});
  trace.use(100, {parameter, gradient});
  trace.use(10, {parameter}, kRW);
  trace.storage_successor[static_cast<size_t>(old_gradient)] = gradient;
  const Run made = run(trace, nullptr, options(80, UM_EVICT_NEVER, 5));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.iterations, 2);  // the second is like the first
  CHECK_EQ(made.step_ns(), 120);
  CHECK_EQ(made.result.peak_live_bytes, 80);
}

TEST(the_host_runs_ahead_until_it_has_to_wait) {
  Trace trace;
  trace.use(100, {});
  trace.use(10, {});
  trace.use(10, {});
  um_swap_options costs = options(0);
  costs.op_issue_ns = 40;
  CHECK_EQ(run(trace, nullptr, costs).step_ns(), 40 + 100 + 10 + 10);
  Trace waiting;
  waiting.op(100, true);
  waiting.end();
  waiting.use(10, {});
  waiting.use(10, {});
  CHECK_EQ(run(waiting, nullptr, costs).step_ns(), 40 + 100 + 40 + 10 + 30 + 10);
}

TEST(a_scheduler_that_synchronises_costs_every_op) {
  Trace trace;
  for (int op = 0; op < 3; ++op) trace.use(100, {});
  um_swap_options costs = options(0);
  costs.op_sync_ns = 33;
  CHECK_EQ(run(trace, nullptr, costs).step_ns(), 3 * 133);
}

TEST(memory_is_told_op_by_op) {
  Forward forward;
  Plan plan(forward.trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, forward.a).before(3, UM_PLAN_SWAP_IN, forward.a);
  std::vector<int64_t> live(4), reserved(4);
  um_swap_options wanted = options(100);
  wanted.op_live_bytes = live.data();
  wanted.op_reserved_bytes = reserved.data();
  CHECK_EQ(run(forward.trace, &plan, wanted).error, "");
  CHECK(live == (std::vector<int64_t>{50, 100, 50, 100}));  // a leaves while op 1 runs
  CHECK(reserved == live);
}

TEST(mapping_chunks_holds_the_compute_queue_up) {
  Trace trace;
  const int32_t a = trace.make(10, 5 << 20);  // three chunks of 2 MiB
  trace.free(a);
  const int32_t b = trace.make(10, 5 << 20);  // finds them mapped
  trace.free(b);
  trace.make(10, 8 << 20);  // grows them by one
  um_swap_options costs = options(64 << 20);
  costs.allocator = UM_ALLOCATOR_VA_CHUNKS;
  costs.map_ns_per_chunk = 7;
  const Run made = run(trace, nullptr, costs);
  CHECK_EQ(made.result.map_ns, 4 * 7);
  CHECK_EQ(made.result.peak_reserved_bytes, 8 << 20);
  CHECK_EQ(made.result.fragmentation_bytes, 0);
}

TEST(copies_of_the_host_are_in_line_with_the_ops) {
  Trace trace;
  const int32_t batch = trace.allocate(80);
  trace.event(2, batch, 40);  // before the step: its contents are there when the next one begins
  trace.use(0, {});
  trace.event(2, batch, 80);
  trace.use(10, {batch});
  trace.event(3, batch, 20);
  um_swap_options twice = options(80);
  twice.iterations = 2;
  const Run made = run(trace, nullptr, twice);
  CHECK_EQ(made.step_ns(), 80 + 10 + 20);
  CHECK_EQ(made.result.host_write_bytes, 80);
  CHECK_EQ(made.result.host_read_bytes, 20);
}

TEST(storages_that_die_while_they_are_copied_keep_their_memory_until_then) {
  Trace trace;
  const int32_t a = trace.make(10, 60);
  trace.use(0, {});
  trace.free(a);
  trace.make(10, 60);
  Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, a);
  const Run made = run(trace, &plan, options(60));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.wait_room_ns, 60);
  CHECK_EQ(made.step_ns(), 80);
}

TEST(plans_that_cannot_be_are_refused) {
  Forward forward;
  const auto error_of = [&](const Plan& plan) { return run(forward.trace, &plan, options(100)).error; };
  Plan unordered(forward.trace);
  unordered.behind(2, UM_PLAN_SWAP_OUT, forward.a).behind(0, UM_PLAN_SWAP_OUT, forward.b);
  CHECK(error_of(unordered).find("order") != std::string::npos);
  Plan advice(forward.trace);
  advice.before(0, UM_PLAN_ADVISE, forward.a);
  CHECK(error_of(advice).find("unified memory") != std::string::npos);
  Plan partly(forward.trace);
  partly.behind(0, UM_PLAN_SWAP_OUT, forward.a).bytes[0] = 10;
  CHECK(error_of(partly).find("whole storages") != std::string::npos);
  Plan dead(forward.trace);
  dead.before(0, UM_PLAN_SWAP_OUT, forward.b);
  CHECK(error_of(dead).find("not alive") != std::string::npos);
  Plan unsaved(forward.trace);
  unsaved.behind(0, UM_PLAN_DROP, forward.a, 1);
  CHECK(error_of(unsaved).find("not valid") != std::string::npos);
  Plan nowhere(forward.trace);
  nowhere.before(4, UM_PLAN_WAIT, forward.a);
  CHECK(error_of(nowhere).find("no such op") != std::string::npos);
}

TEST(traces_and_links_that_cannot_be_are_refused) {
  const auto error_of = [](const Trace& trace) { return run(trace, nullptr, options(1000)).error; };
  Forward forward;
  Trace trace = forward.trace;
  trace.access_storage[0] = 2;
  CHECK(error_of(trace).find("unknown storage") != std::string::npos);
  trace = forward.trace;
  trace.access_op[0] = 4;
  CHECK(error_of(trace).find("order of the ops") != std::string::npos);
  trace = forward.trace;
  trace.event_storage[0] = -1;
  CHECK(error_of(trace).find("event of an unknown storage") != std::string::npos);
  trace = forward.trace;
  trace.event_op[1] = -2;
  CHECK(error_of(trace).find("events are not in the order") != std::string::npos);
  trace = forward.trace;
  trace.storage_successor[0] = 7;
  CHECK(error_of(trace).find("unknown successor") != std::string::npos);
  um_link link = plain_link();
  link.bytes_per_s[1] = 0;
  CHECK(run(forward.trace, nullptr, options(1000), link).error.find("no speed") != std::string::npos);
  link = plain_link();
  link.engines[0] = 0;
  CHECK(run(forward.trace, nullptr, options(1000), link).error.find("copy engines") != std::string::npos);
  um_swap_options none = options(1000);
  none.iterations = 0;
  CHECK(run(forward.trace, nullptr, none).error.find("iteration") != std::string::npos);
}
