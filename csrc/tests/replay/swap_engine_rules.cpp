// Plans simulated by the engine's rules, cases worked by hand.
#include "check.h"
#include "swap_fixture.h"

using namespace fixture;

namespace {

// Two chunks of room: `a` is made and nobody needs it any more, says the plan.
struct Dropped {
  Trace trace;
  int32_t a, b;
  Dropped() {
    a = trace.make(100, kChunk);
    b = trace.make(100, kChunk);
  }
  Plan plan() {
    Plan made(trace);
    made.behind(0, UM_PLAN_DROP, a);
    return made;
  }
};

}  // namespace

TEST(a_spare_stays_while_there_is_room) {
  Dropped dropped;
  dropped.trace.use(100, {dropped.a});
  const Plan plan = dropped.plan();
  const Run made = run(dropped.trace, &plan, in_chunks(2));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.step_ns(), 300);
  CHECK_EQ(made.result.swap_outs + made.result.swap_ins + made.result.clean_drops, 0);
  um_swap_options literal = in_chunks(2);
  literal.engine_rules = 0;
  CHECK(run(dropped.trace, &plan, literal).error.find("dropped") != std::string::npos);
}

TEST(a_spare_leaves_with_a_copy_when_room_is_needed) {
  Dropped dropped;
  const int32_t c = dropped.trace.make(100, kChunk);
  dropped.trace.free(c);
  dropped.trace.use(100, {dropped.a});
  const Plan plan = dropped.plan();
  const Run made = run(dropped.trace, &plan, in_chunks(2));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.wait_room_ns, kChunk);  // the copy begins when the op needs its room
  CHECK_EQ(made.result.swap_outs, 1);
  CHECK_EQ(made.result.evictions, 0);
  CHECK_EQ(made.result.on_demand_swap_ins, 1);  // the plan was wrong: slow, not wrong
  CHECK_EQ(made.result.wait_copy_ns, kChunk);
}

TEST(the_spare_that_was_used_longest_ago_leaves_first) {
  for (const bool again : {false, true}) {
    Dropped dropped;
    if (again) dropped.trace.use(100, {dropped.a});
    const int32_t last = dropped.trace.use(100, {});
    dropped.trace.make(100, kChunk);
    Plan plan(dropped.trace);
    plan.behind(last, UM_PLAN_DROP, dropped.b).behind(last, UM_PLAN_DROP, dropped.a);
    const Run made = run(dropped.trace, &plan, in_chunks(2));
    CHECK_EQ(made.error, "");
    CHECK((made.copy_of(dropped.a, UM_TRACK_D2H) != nullptr) == !again);
    CHECK((made.copy_of(dropped.b, UM_TRACK_D2H) != nullptr) == again);
  }
}

TEST(what_is_used_again_is_no_spare) {
  Dropped dropped;
  dropped.trace.use(100, {dropped.a});
  dropped.trace.make(100, kChunk);
  const Plan plan = dropped.plan();
  CHECK(run(dropped.trace, &plan, in_chunks(2)).error.find("no room") != std::string::npos);
  const Run made = run(dropped.trace, &plan, in_chunks(2, UM_EVICT_FURTHEST));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.evictions, 1);
}

TEST(what_the_host_has_leaves_at_once) {
  Trace trace;
  const int32_t weight = trace.allocate(kChunk);
  trace.use(100, {});
  trace.use(1000, {weight});  // 1
  trace.make(100, kChunk);
  Plan plan(trace);
  plan.before(0, UM_PLAN_SWAP_IN, weight).behind(1, UM_PLAN_DROP, weight);
  const Run made = run(trace, &plan, in_chunks(1));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.result.clean_drops, 1);
  CHECK_EQ(made.result.swap_outs, 0);
  CHECK_EQ(made.result.wait_room_ns, 0);
}

// The swap-in of `b` finds no room before op 2: the spare leaves during op 2, `b` comes during op 3.
TEST(a_swap_in_that_waits_sends_spares_away) {
  Trace trace;
  const int32_t b = trace.allocate(kChunk);
  const int32_t a = trace.make(100, kChunk);
  trace.use(100, {});
  trace.use(600, {});
  trace.use(600, {});
  trace.use(100, {b});
  Plan plan(trace);
  plan.behind(0, UM_PLAN_DROP, a).before(2, UM_PLAN_SWAP_IN, b);
  const Run made = run(trace, &plan, in_chunks(1));
  CHECK_EQ(made.error, "");
  CHECK_EQ(made.step_ns(), 1500);
  CHECK_EQ(made.copy_of(a, UM_TRACK_D2H)->start_ns, 200);
  CHECK_EQ(made.copy_of(b, UM_TRACK_H2D)->start_ns, 800);  // when op 2 has ended
  CHECK_EQ(made.result.on_demand_swap_ins, 0);
}

// To the letter a copy takes its memory when it begins.
TEST(swap_ins_take_their_memory_when_they_are_asked_for) {
  Trace trace;
  const int32_t a = trace.allocate(kChunk), b = trace.allocate(kChunk);
  for (int op = 0; op < 3; ++op) trace.use(400, {});
  trace.use(100, {a, b});
  Plan plan(trace);
  plan.before(0, UM_PLAN_SWAP_IN, a).before(0, UM_PLAN_SWAP_IN, b);
  for (const uint32_t rules : {0u, 1u}) {
    int64_t reserved[4] = {};
    um_swap_options wanted = in_chunks(2);
    wanted.engine_rules = rules;
    wanted.op_reserved_bytes = reserved;
    const Run made = run(trace, &plan, wanted);
    CHECK_EQ(made.error, "");
    CHECK_EQ(reserved[0], rules != 0 ? 2 * kChunk : kChunk);
    CHECK_EQ(reserved[3], 2 * kChunk);
  }
}

TEST(a_copy_that_was_asked_for_is_made) {
  Trace trace;
  const int32_t a = trace.make(10, kChunk), b = trace.make(10, kChunk);
  trace.use(10, {b});
  trace.use(2000, {});
  Plan plan(trace);
  plan.behind(1, UM_PLAN_SWAP_OUT, a).behind(1, UM_PLAN_SWAP_OUT, b);
  for (const uint32_t rules : {0u, 1u}) {
    um_swap_options wanted = in_chunks(2);
    wanted.engine_rules = rules;
    const Run made = run(trace, &plan, wanted);
    CHECK_EQ(made.result.cancelled, 1);
    CHECK_EQ(made.result.swap_outs, rules != 0 ? 2 : 1);
  }
}

TEST(what_is_small_and_scratch_memory_stay) {
  Trace trace;
  const int32_t small = trace.make(100, kChunk / 2), scratch = trace.allocate(kChunk);
  trace.storage_role[static_cast<size_t>(scratch)] = UM_ROLE_WORKSPACE;
  trace.use(100, {});
  Plan plan(trace);
  plan.behind(0, UM_PLAN_DROP, small).behind(1, UM_PLAN_SWAP_OUT, scratch);
  const Run made = run(trace, &plan, in_chunks(2, UM_EVICT_FURTHEST));
  CHECK_EQ(made.result.redundant_actions, 2);
  trace.make(100, kChunk);
  CHECK(run(trace, &plan, in_chunks(2, UM_EVICT_FURTHEST)).error.find("no room") != std::string::npos);
}

TEST(what_is_written_as_a_whole_gets_its_contents_first) {
  Trace trace;
  const int32_t a = trace.make(100, kChunk);
  trace.use(1000, {});
  trace.use(100, {a}, kWholeWrite);
  Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, a);
  CHECK_EQ(run(trace, &plan, in_chunks(2)).result.on_demand_swap_ins, 1);
}

TEST(the_rules_need_chunks) {
  Dropped dropped;
  um_swap_options wrong = in_chunks(2);
  wrong.allocator = UM_ALLOCATOR_EXACT;
  CHECK(run(dropped.trace, nullptr, wrong).error.find("chunks") != std::string::npos);
}
