// What the time of a GPU's step is said to have gone into, of timelines that are written down here: microseconds.
#include "engine/step_times.h"

#include "check.h"

using um::OpTimeline;
using um::Stretch;
using um::Times;

namespace {

constexpr int64_t kUs = 1000;

// Called and returned by the host's clock, begun and ended by the device's.
OpTimeline::Op op(int64_t called, int64_t returned, int64_t begin, int64_t end, int64_t latest_end = 0) {
  OpTimeline::Op made{};
  made.called_ns = called * kUs;
  made.returned_ns = returned * kUs;
  made.begin_ns = begin * kUs;
  made.end_ns = end * kUs;
  made.latest_end_ns = std::max(end, latest_end) * kUs;
  return made;
}

Times::Turn turn(int64_t at, um_time kind) { return {at * kUs, kind}; }
Stretch stretch(int64_t begin, int64_t end, um_time kind) { return {begin * kUs, end * kUs, kind}; }

um_spent_time spent(const std::vector<OpTimeline::Op>& ops, const std::vector<Stretch>& stood = {},
                    const std::vector<Stretch>& copied = {},
                    const std::vector<Times::Turn>& host = {turn(0, UM_TIME_SCRIPT)}, int64_t end = 1000) {
  return um::times_of_step(host, ops, stood, copied, end * kUs).all;
}

int64_t sum_ns(const um_spent_time& times) {
  return times.compute_ns + times.guard_ns + times.script_ns + times.planning_ns + times.observing_ns +
         times.first_touch_ns + times.migration_ns + times.fault_room_ns + times.prefetch_ns + times.swap_in_ns +
         times.on_demand_ns + times.room_ns;
}

}  // namespace

TEST(what_the_device_does_not_do_is_the_hosts_time) {
  const std::vector<Times::Turn> host = {turn(0, UM_TIME_PLANNING), turn(100, UM_TIME_SCRIPT),
                                         turn(200, UM_TIME_GUARD),  turn(210, UM_TIME_COMPUTE),
                                         turn(260, UM_TIME_GUARD),  turn(270, UM_TIME_OBSERVING)};
  const um_spent_time times = spent({op(210, 260, 215, 900)}, {}, {}, host);
  CHECK_EQ(times.planning_ns, 100 * kUs);
  CHECK_EQ(times.guard_ns, 10 * kUs);
  CHECK_EQ(times.compute_ns, 640 * kUs);        // since the host has given it out, 260
  CHECK_EQ(times.script_ns, (100 + 50) * kUs);  // the op's call is torch's on the host
  CHECK_EQ(times.observing_ns, 100 * kUs);      // the wait for the end
  CHECK_EQ(sum_ns(times), 1000 * kUs);
}

TEST(an_op_that_the_device_has_begun_long_before_its_call_ends_computes_an_eighth) {
  const um_spent_time times = spent({op(0, 500, 100, 180)});
  CHECK_EQ(times.compute_ns, 10 * kUs);
  CHECK_EQ(times.script_ns, 990 * kUs);
}

TEST(between_two_ops_that_it_has_been_given_the_device_computes) {
  const um_spent_time times = spent({op(0, 10, 100, 500), op(20, 30, 515, 1000)});
  CHECK_EQ(times.compute_ns, 900 * kUs);
  CHECK_EQ(sum_ns(times), 1000 * kUs);
}

TEST(what_a_device_waits_for_that_has_been_given_the_next_op_is_not_the_hosts_time) {
  const um_spent_time times = spent({op(0, 10, 100, 500), op(20, 30, 700, 1000)});
  CHECK_EQ(times.compute_ns, 700 * kUs);
  CHECK_EQ(times.script_ns, 100 * kUs);
  CHECK_EQ(sum_ns(times), 800 * kUs);
}

TEST(it_is_what_pages_take_that_leave_and_come_then) {
  const std::vector<Stretch> copied = {stretch(10, 50, UM_TIME_PREFETCH), stretch(450, 600, UM_TIME_FAULT_ROOM),
                                       stretch(650, 660, UM_TIME_PREFETCH), stretch(800, 900, UM_TIME_FAULT_ROOM)};
  const um_spent_time times = spent({op(0, 10, 100, 500), op(20, 30, 700, 1000)}, {}, copied);
  CHECK_EQ(times.fault_room_ns, 100 * kUs);
  CHECK_EQ(times.prefetch_ns, 10 * kUs);
  CHECK_EQ(times.compute_ns, 700 * kUs);
  CHECK_EQ(times.script_ns, 100 * kUs);
}

TEST(an_op_does_not_compute_while_it_stands_still) {
  const std::vector<Stretch> stood = {stretch(300, 400, UM_TIME_ROOM), stretch(350, 450, UM_TIME_MIGRATION),
                                      stretch(500, 600, UM_TIME_SWAP_IN)};
  const um_spent_time times = spent({op(0, 10, 100, 500), op(20, 30, 600, 1000)}, stood);
  CHECK_EQ(times.room_ns, 100 * kUs);
  CHECK_EQ(times.migration_ns, 50 * kUs);
  CHECK_EQ(times.swap_in_ns, 100 * kUs);
  CHECK_EQ(times.compute_ns, 650 * kUs);
  CHECK_EQ(sum_ns(times), 1000 * kUs);
}

TEST(ops_of_two_streams_compute_once_where_they_overlap) {
  const um_spent_time times = spent({op(0, 10, 100, 800), op(20, 30, 200, 400, 800), op(40, 50, 810, 900)});
  CHECK_EQ(times.compute_ns, 800 * kUs);
  CHECK_EQ(times.script_ns, 200 * kUs);
}

TEST(what_ops_compute_adds_up_to_what_the_step_does) {
  std::vector<OpTimeline::Op> ops = {op(0, 10, 100, 500), op(20, 30, 515, 700), op(40, 50, 600, 800, 800)};
  ops[0].identity = {1, 1, 7, 3, UM_PHASE_FORWARD};
  ops[1].identity = {1, 2, 8, 3, UM_PHASE_FORWARD};
  ops[2].identity = {1, 3, 7, 3, UM_PHASE_FORWARD};
  const um::StepTimes found =
      um::times_of_step({turn(0, UM_TIME_SCRIPT)}, ops, {stretch(300, 400, UM_TIME_ROOM)}, {}, 1000 * kUs);
  CHECK(found.compute_ns == std::vector<int64_t>({300 * kUs, (15 + 185) * kUs, 100 * kUs}));
  const std::vector<um_residency> rows = um::ran_by_op(ops, found.compute_ns);
  CHECK_EQ(rows.size(), size_t{2});
  CHECK_EQ(rows[0].op, 7u);
  CHECK_EQ(rows[0].compute_ns, 400 * kUs);
  CHECK_EQ(rows[1].compute_ns, 200 * kUs);
  CHECK_EQ(rows[0].compute_ns + rows[1].compute_ns, found.all.compute_ns);
  CHECK_EQ(rows[0].peak_bytes, static_cast<uint64_t>(UM_UNKNOWN));
}

TEST(nothing_before_the_first_turn_counts) {
  const um_spent_time times =
      spent({op(0, 10, 100, 500)}, {stretch(0, 50, UM_TIME_ROOM)}, {}, {turn(400, UM_TIME_GUARD)});
  CHECK_EQ(times.room_ns, int64_t{0});
  CHECK_EQ(times.compute_ns, 100 * kUs);
  CHECK_EQ(times.guard_ns, 500 * kUs);
  CHECK_EQ(sum_ns(spent({}, {}, {}, {})), int64_t{0});
}

TEST(a_fault_is_for_what_is_copied_while_it_is_serviced) {
  using namespace um::cupti;
  const auto sample = [](CUpti_ActivityUnifiedMemoryCounterKind kind, int64_t start, int64_t end, uint32_t flags) {
    return Sample{start * kUs, end * kUs, 0, 0, kind, flags};
  };
  constexpr auto kFault = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT;
  constexpr auto kComes = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD;
  constexpr auto kLeaves = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH;
  const std::vector<Sample> samples = {
      sample(kFault, 100, 200, 0),
      sample(kComes, 150, 180, CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE),
      sample(kLeaves, 90, 120, CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_EVICTION),
      sample(kFault, 300, 400, 0),
      sample(kLeaves, 500, 600, CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER),
      sample(kFault, 0, 50, 0),
  };
  const um_spent_time times = spent({op(0, 10, 50, 1000)}, um::stood_for_faults(samples));
  CHECK_EQ(times.fault_room_ns, 20 * kUs);
  CHECK_EQ(times.migration_ns, 80 * kUs);
  CHECK_EQ(times.first_touch_ns, 100 * kUs);
  CHECK_EQ(times.compute_ns, 750 * kUs);
  const std::vector<Stretch> copies = um::copies_asked_for(samples);
  CHECK_EQ(copies.size(), size_t{1});
  CHECK_EQ(copies[0].begin_ns, 500 * kUs);
  CHECK_EQ(uint32_t{copies[0].kind}, uint32_t{UM_TIME_FAULT_ROOM});
}
