// A planned step by the engine on a simulated GPU: once it has its layout it maps nothing and the host waits for
// nothing. And what the engine makes of a plan, by hand, where ops run in the host's thread.
#include "replay/gpu_replay.h"

#include "check.h"
#include "driver/driver.h"
#include "memory/names.h"
#include "swap_fixture.h"

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr uint64_t kChunkBytes = 2 * kMiB;
constexpr uint32_t kSettled = 24;  // iterations

// Forward through layers of several sizes, a large output, and backward with a gradient for each layer. Activations
// leave after forward, and weights are dropped; both come two layers ahead.
struct Network {
  explicit Network(int32_t depth) {
    for (int32_t i = 0; i < depth; ++i) weights.push_back(trace.allocate((3 + i % 4) * kMiB));
    for (int32_t i = 0; i < depth; ++i) {
      activations.push_back(trace.make(2'000'000, (5 + 4 * (i % 3)) * kMiB, inputs(i)));
      forward.push_back(last());
    }
    const int32_t output = trace.make(1'000'000, 24 * kMiB, {activations.back()});
    for (int32_t i = depth; i-- > 0;) {
      const int32_t gradient = trace.make(4'000'000, (3 + i % 4) * kMiB, {weights[at(i)], activations[at(i)]});
      backward.push_back(last());
      if (i == depth - 1) trace.free(output);
      trace.use(100'000, {weights[at(i)], gradient}, fixture::kRW);
      trace.free(gradient);
      trace.free(activations[at(i)]);
    }
    for (int32_t i = 0; i + 3 < depth; ++i) {
      plan.behind(forward[at(i + 1)], UM_PLAN_SWAP_OUT, activations[at(i)]);
      plan.behind(forward[at(i + 1)], UM_PLAN_DROP, weights[at(i)]);
    }
    for (int32_t i = depth - 3; i-- > 0;) {
      for (const int32_t each : {weights[at(i)], activations[at(i)]})
        plan.before(backward[at(depth - 1 - (i + 2))], UM_PLAN_SWAP_IN, each);
    }
  }
  static size_t at(int32_t layer) { return static_cast<size_t>(layer); }
  int32_t last() const { return static_cast<int32_t>(trace.op_duration_ns.size()) - 1; }
  std::vector<int32_t> inputs(int32_t layer) const {
    if (layer == 0) return {weights[0]};
    return {weights[at(layer)], activations.back()};
  }

  um_simulation run(uint64_t budget_chunks, uint32_t iterations) const {
    um_gpu_options options{};
    options.link = {{1000, 1000}, {10e9, 10e9}, {8e9, 8e9}, {1, 1}};
    options.chunks.budget_bytes = budget_chunks * kChunkBytes;
    options.chunks.host_budget_bytes = 1024 * kMiB;
    options.chunks.chunk_bytes = kChunkBytes;
    options.capacity_bytes = 1024 * kMiB;
    options.op_ns = 7000;
    options.iterations = iterations;
    const um_trace columns = trace.columns();
    const um_plan actions = plan.columns();
    return um::simulator::GpuReplay(columns, &actions, options).run();
  }

  fixture::Trace trace;
  fixture::Plan plan{trace};
  std::vector<int32_t> weights, activations, forward, backward;
};

}  // namespace

TEST(a_planned_step_that_has_its_layout_maps_nothing) {
  const Network network(16);
  for (const uint64_t budget : {44, 48, 56, 64}) {
    const um_simulation settled = network.run(budget, kSettled), longer = network.run(budget, kSettled + 6);
    for (size_t i = 0; i < longer.calls.size(); ++i) {
      const std::string name = um::name_of(longer.calls[i].function);
      CHECK_EQ(longer.calls[i].waits, int64_t{0});
      if (name == "cuMemMap" || name == "cuMemUnmap" || name == "cuMemSetAccess" || name == "cuMemCreate")
        CHECK_EQ(longer.calls[i].calls, settled.calls[i].calls);
    }
    CHECK(longer.gpu_steps.back().swaps.swap_ins > 10);
  }
}

// ---- what the engine makes of a plan --------------------------------------------------------------------------------

namespace {

constexpr int64_t kChunk = kChunkBytes, kOp = 100;  // a byte takes a nanosecond

// A steady step.
um_gpu_step carried_out(const fixture::Trace& trace, const fixture::Plan& plan, uint64_t budget_chunks) {
  um_gpu_options options{};
  options.link = fixture::plain_link();
  options.chunks.budget_bytes = budget_chunks * kChunkBytes;
  options.chunks.chunk_bytes = kChunkBytes;
  options.capacity_bytes = 64 * kMiB;
  options.iterations = 12;
  options.synchronous = options.until_steady = 1;
  const um_trace columns = trace.columns();
  const um_plan actions = plan.columns();
  return um::simulator::GpuReplay(columns, &actions, options).run().gpu_steps.back();
}

// Two chunks of room: `a` is made and nobody needs it any more, says the plan.
struct Dropped {
  Dropped() {
    a = trace.make(kOp, kChunk);
    b = trace.make(kOp, kChunk);
  }
  um_swap_counters run() {
    plan.behind(0, UM_PLAN_DROP, a);
    return carried_out(trace, plan, 2).swaps;
  }
  fixture::Trace trace;
  fixture::Plan plan{trace};
  int32_t a, b;
};

}  // namespace

TEST(a_spare_stays_while_there_is_room) {
  Dropped dropped;
  dropped.trace.use(kOp, {dropped.a});
  const um_swap_counters swaps = dropped.run();
  CHECK_EQ(swaps.swap_outs + swaps.swap_ins + swaps.clean_drops, 0);
  CHECK_EQ(swaps.wait_copy_ns + swaps.wait_room_ns, 0);
}

TEST(a_spare_leaves_with_a_copy_when_room_is_needed) {
  Dropped dropped;
  const int32_t c = dropped.trace.make(kOp, kChunk);
  dropped.trace.free(c);
  dropped.trace.use(kOp, {dropped.a});
  const um_swap_counters swaps = dropped.run();
  CHECK_EQ(swaps.wait_room_ns, kChunk);  // the copy begins when the op needs its room
  CHECK_EQ(swaps.swap_outs, 1);
  CHECK_EQ(swaps.evictions, 0);
  CHECK_EQ(swaps.on_demand_swap_ins, 1);  // the plan was wrong: slow, not wrong
  CHECK_EQ(swaps.wait_copy_ns, kChunk);
}

TEST(the_spare_that_was_used_longest_ago_leaves_first) {
  for (const bool again : {false, true}) {
    fixture::Trace trace;
    const int32_t a = trace.make(kOp, kChunk), b = trace.make(kOp, kChunk);
    if (again) trace.use(kOp, {a});
    const int32_t last = trace.use(kOp, {});
    const int32_t c = trace.make(kOp, kChunk);
    trace.free(c);
    trace.use(kOp, {a});
    fixture::Plan plan(trace);
    plan.behind(last, UM_PLAN_DROP, b).behind(last, UM_PLAN_DROP, a);
    CHECK_EQ(carried_out(trace, plan, 2).swaps.on_demand_swap_ins, again ? 0 : 1);
  }
}

TEST(what_is_used_again_is_no_spare) {
  Dropped dropped;
  dropped.trace.use(kOp, {dropped.a});
  dropped.trace.make(kOp, kChunk);
  CHECK_EQ(dropped.run().evictions, 1);
}

TEST(what_the_host_has_leaves_at_once) {
  fixture::Trace trace;
  const int32_t weight = trace.allocate(kChunk);
  trace.use(kOp, {});
  trace.use(10 * kChunk, {weight});  // 1
  trace.make(kOp, kChunk);
  fixture::Plan plan(trace);
  plan.before(0, UM_PLAN_SWAP_IN, weight).behind(1, UM_PLAN_DROP, weight);
  const um_swap_counters swaps = carried_out(trace, plan, 1).swaps;
  CHECK_EQ(swaps.clean_drops, 1);
  CHECK_EQ(swaps.swap_outs, 0);
  CHECK_EQ(swaps.wait_room_ns, 0);
}

// The swap-in of `b` finds no room before op 2: the spare leaves during op 2, `b` comes during op 3.
TEST(a_swap_in_that_waits_sends_spares_away) {
  fixture::Trace trace;
  const int32_t b = trace.allocate(kChunk);
  const int32_t a = trace.make(kOp, kChunk);
  trace.use(kOp, {});
  trace.use(2 * kChunk, {});
  trace.use(2 * kChunk, {});
  trace.use(kOp, {b});
  fixture::Plan plan(trace);
  plan.behind(0, UM_PLAN_DROP, a).before(2, UM_PLAN_SWAP_IN, b).behind(4, UM_PLAN_SWAP_OUT, b);
  const um_gpu_step step = carried_out(trace, plan, 1);
  CHECK_EQ(step.swaps.on_demand_swap_ins, 0);
  CHECK_EQ(step.swaps.swap_outs, 1);
  CHECK_EQ(step.duration_ns, 3 * kOp + 4 * kChunk);
}

TEST(what_is_small_and_scratch_memory_stay) {
  fixture::Trace trace;
  const int32_t small = trace.make(kOp, 1000);
  trace.op(kOp);
  const int32_t scratch = trace.allocate(kChunk);  // no op is given it
  trace.end();
  trace.use(kOp, {});
  fixture::Plan plan(trace);
  plan.behind(0, UM_PLAN_DROP, small).behind(1, UM_PLAN_SWAP_OUT, scratch);
  CHECK_EQ(carried_out(trace, plan, 2).swaps.redundant_actions, 2);
  trace.make(kOp, kChunk);
  std::string message;
  try {
    carried_out(trace, plan, 2);
  } catch (const um::Error& error) {
    message = error.what();
  }
  CHECK(message.find("no room") != std::string::npos);
}

TEST(what_is_written_as_a_whole_gets_its_contents_first) {
  fixture::Trace trace;
  const int32_t a = trace.make(kOp, kChunk);
  const int32_t other = trace.make(kOp, kChunk);
  trace.free(other);
  trace.use(kOp, {a}, fixture::kWholeWrite);
  fixture::Plan plan(trace);
  plan.behind(0, UM_PLAN_SWAP_OUT, a);
  const um_swap_counters swaps = carried_out(trace, plan, 1).swaps;
  CHECK_EQ(swaps.on_demand_swap_ins, 1);
  CHECK_EQ(swaps.wait_copy_ns, kChunk);
}
