// Random traces and plans: what holds for every run, whatever it does, and Belady's rule against brute force.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "check.h"
#include "swap_fixture.h"

using namespace fixture;

namespace {

using Random = std::mt19937;

int64_t below(Random& random, int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); }

// Ops that read, change and make storages, with scratch of their own; some storages are there before and stay.
Trace random_trace(Random& random) {
  Trace trace;
  std::vector<int32_t> live;
  const int64_t persistent = below(random, 4);
  for (int64_t i = 0; i < persistent; ++i) live.push_back(trace.allocate(1 + below(random, 100)));
  const int64_t ops = 2 + below(random, 25);
  for (int64_t op = 0; op < ops; ++op) {
    trace.op(below(random, 120), below(random, 10) == 0);
    std::set<int32_t> touched;
    for (int64_t i = below(random, 3); i > 0 && !live.empty(); --i) {
      touched.insert(live[static_cast<size_t>(below(random, static_cast<int64_t>(live.size())))]);
    }
    for (const int32_t each : touched)
      trace.access(each, below(random, 4) == 0 ? kRW : below(random, 8) == 0 ? kWholeWrite : kR);
    if (below(random, 3) == 0) trace.free(trace.allocate(1 + below(random, 60)));
    if (below(random, 2) == 0) {
      const int32_t made = trace.allocate(1 + below(random, 100));
      trace.access(made, kWholeWrite);
      live.push_back(made);
    }
    trace.end();
    if (!live.empty() && below(random, 3) == 0) {
      const auto gone = live.begin() + static_cast<std::ptrdiff_t>(below(random, static_cast<int64_t>(live.size())));
      if (*gone >= persistent) {
        trace.free(*gone);
        live.erase(gone);
      }
    }
  }
  return trace;
}

std::vector<std::vector<int32_t>> uses_of(const Trace& trace) {
  std::vector<std::vector<int32_t>> uses(trace.storage_bytes.size());
  for (size_t row = 0; row < trace.access_op.size(); ++row) {
    uses[static_cast<size_t>(trace.access_storage[row])].push_back(trace.access_op[row]);
  }
  return uses;
}

// Swaps in some of the gaps between uses.
Plan random_plan(Random& random, const Trace& trace) {
  struct Action {
    int32_t op;
    bool after;
    um_plan_kind kind;
    int32_t storage;
  };
  std::vector<Action> actions;
  const auto uses = uses_of(trace);
  for (size_t storage = 0; storage < uses.size(); ++storage) {
    for (size_t use = 0; use + 1 < uses[storage].size(); ++use) {
      const int32_t from = uses[storage][use], to = uses[storage][use + 1];
      if (from == to || below(random, 2) == 0) continue;
      actions.push_back({from, true, UM_PLAN_SWAP_OUT, static_cast<int32_t>(storage)});
      if (below(random, 5) == 0) continue;  // comes on demand
      const auto back = static_cast<int32_t>(from + 1 + below(random, to - from));
      actions.push_back({back, false, UM_PLAN_SWAP_IN, static_cast<int32_t>(storage)});
    }
  }
  std::stable_sort(actions.begin(), actions.end(),
                   [](const Action& a, const Action& b) { return a.op != b.op ? a.op < b.op : a.after < b.after; });
  Plan plan(trace);
  for (const Action& each : actions) plan.add(each.kind, each.op, each.after, each.storage);
  return plan;
}

um_link random_link(Random& random) {
  um_link link = plain_link();
  for (int direction = 0; direction < 2; ++direction) {
    link.fixed_ns[direction] = below(random, 5);
    link.bytes_per_s[direction] = 1e7 * static_cast<double>(1 + below(random, 30));
    link.both_bytes_per_s[direction] = link.bytes_per_s[direction] * (below(random, 2) == 0 ? 1 : 0.6);
    link.engines[direction] = 1 + static_cast<uint32_t>(below(random, 2));
  }
  return link;
}

int64_t largest_working_set(const Trace& trace) {
  std::vector<std::set<int32_t>> touched(trace.op_duration_ns.size());
  for (size_t row = 0; row < trace.access_op.size(); ++row) {
    touched[static_cast<size_t>(trace.access_op[row])].insert(trace.access_storage[row]);
  }
  for (size_t row = 0; row < trace.event_op.size(); ++row) {
    if (trace.event_inside[row] && trace.event_kind[row] == 0) {
      touched[static_cast<size_t>(trace.event_op[row])].insert(trace.event_storage[row]);
    }
  }
  int64_t largest = 0;
  for (const auto& each : touched) {
    int64_t sum = 0;
    for (const int32_t storage : each) sum += trace.storage_bytes[static_cast<size_t>(storage)];
    largest = std::max(largest, sum);
  }
  return largest;
}

// Spans of one place do not overlap; those of the compute queue leave no gap.
void check_spans(const Run& made) {
  std::map<std::pair<int, int>, std::vector<const um_span*>> places;
  for (const um_span& span : made.spans) places[{span.track, span.engine}].push_back(&span);
  for (auto& [place, spans] : places) {
    std::sort(spans.begin(), spans.end(), [](const um_span* a, const um_span* b) {
      return a->start_ns != b->start_ns ? a->start_ns < b->start_ns : a->duration_ns < b->duration_ns;
    });
    for (size_t i = 1; i < spans.size(); ++i) {
      const int64_t end_ns = spans[i - 1]->start_ns + spans[i - 1]->duration_ns;
      if (place.first == UM_TRACK_COMPUTE) CHECK_EQ(spans[i]->start_ns, end_ns);
      CHECK(spans[i]->start_ns >= end_ns);
    }
  }
}

// Bounds that any schedule keeps: no faster than the ops or either direction, no slower than one thing at a time.
void check_bounds(const Trace& trace, const um_link& link, const um_swap_options& options, const Run& made) {
  const um_swap_result& result = made.result;
  int64_t compute_ns = 0;
  for (const int64_t each : trace.op_duration_ns) compute_ns += each;
  CHECK_EQ(result.compute_ns, compute_ns);
  int64_t moved[2] = {}, copies[2] = {};
  double serial_ns = static_cast<double>(compute_ns + result.recompute_ns);
  for (const um_span& span : made.spans) {
    if (span.kind != UM_SPAN_COPY) continue;
    const int direction = span.track == UM_TRACK_H2D ? 0 : 1;
    moved[direction] += span.bytes;
    ++copies[direction];
    serial_ns += static_cast<double>(link.fixed_ns[direction]) + 1 +
                 static_cast<double>(span.bytes) * 1e9 / link.both_bytes_per_s[direction];
  }
  CHECK_EQ(moved[0], result.swap_in_bytes);
  CHECK_EQ(moved[1], result.swap_out_bytes);
  CHECK_EQ(copies[0], result.swap_ins);
  CHECK_EQ(copies[1], result.swap_outs);
  CHECK(result.total_ns >= compute_ns && result.total_ns >= made.step_ns());
  for (int direction = 0; direction < 2; ++direction) {
    const double least_ns = static_cast<double>(moved[direction]) * 1e9 / link.bytes_per_s[direction];
    CHECK(static_cast<double>(result.total_ns) >= least_ns - 1);
  }
  serial_ns += static_cast<double>(options.op_issue_ns) * static_cast<double>(trace.op_duration_ns.size());
  // A copy's speed is that of both directions at worst; rounding up to whole nanoseconds costs one an event.
  CHECK(static_cast<double>(made.step_ns()) <= serial_ns + 4 * static_cast<double>(copies[0] + copies[1]));
  CHECK(result.peak_reserved_bytes <= static_cast<int64_t>(options.budget_bytes));
}

}  // namespace

TEST(every_run_keeps_the_bounds) {
  Random random(1);
  int went_through = 0, waited_for_room = 0;
  for (int round = 0; round < 3000; ++round) {
    const Trace trace = random_trace(random);
    const Plan plan = random_plan(random, trace);
    const um_link link = random_link(random);
    int64_t sum = 0;
    for (const int64_t each : trace.storage_bytes) sum += each;
    um_swap_options costs = options(static_cast<uint64_t>(largest_working_set(trace) + below(random, sum + 1)));
    costs.op_issue_ns = below(random, 2) * below(random, 20);
    const Run made = run(trace, &plan, costs, link);
    if (!made.error.empty()) {
      CHECK(made.result.failed_op >= -1 && made.error.find("no room") != std::string::npos);
      CHECK(made.result.budget_needed_bytes > static_cast<int64_t>(costs.budget_bytes));
      continue;
    }
    ++went_through;
    waited_for_room += made.result.wait_room_ns > 0;
    check_spans(made);
    check_bounds(trace, link, costs, made);
  }
  CHECK(went_through > 1000 && waited_for_room > 30);
}

// Whatever the plan forgets, a budget that holds the largest working set is enough where evictions are allowed.
TEST(evictions_make_every_working_set_fit) {
  Random random(2);
  for (int round = 0; round < 3000; ++round) {
    const Trace trace = random_trace(random);
    const Plan plan = random_plan(random, trace);
    const um_link link = random_link(random);
    const um_eviction eviction = round % 2 == 0 ? UM_EVICT_FURTHEST : UM_EVICT_LEAST_RECENT;
    int64_t budget_bytes = largest_working_set(trace);
    for (const int64_t each : trace.storage_bytes) budget_bytes = std::max(budget_bytes, each);
    const um_swap_options costs = options(static_cast<uint64_t>(budget_bytes), eviction);
    const Run made = run(trace, round % 3 == 0 ? nullptr : &plan, costs, link);
    CHECK_EQ(made.error, "");
    check_spans(made);
    check_bounds(trace, link, costs, made);
    const Run repeated = run(trace, &plan, options(costs.budget_bytes, eviction, 4), link);
    CHECK_EQ(repeated.error, "");
  }
}

// Without a plan memory is what the events say, op by op.
TEST(memory_follows_the_events) {
  Random random(6);
  for (int round = 0; round < 300; ++round) {
    const Trace trace = random_trace(random);
    std::vector<int64_t> live(trace.op_duration_ns.size()), expected(live.size());
    um_swap_options wanted = options(1 << 20);
    wanted.op_live_bytes = live.data();
    CHECK_EQ(run(trace, nullptr, wanted).error, "");
    int64_t now = 0;
    size_t event = 0;
    for (int32_t op = -1; op < static_cast<int32_t>(live.size()); ++op) {
      int64_t most = now;
      for (; event < trace.event_op.size() && trace.event_op[event] == op; ++event) {
        const int64_t bytes = trace.storage_bytes[static_cast<size_t>(trace.event_storage[event])];
        now += trace.event_kind[event] == 0 ? bytes : -bytes;
        most = std::max(most, now);
      }
      if (op >= 0) expected[static_cast<size_t>(op)] = most;
    }
    CHECK(live == expected);
  }
}

// With room for everything no plan of swaps changes what is computed, and none is slower than the ops alone when all
// copies are free of charge.
TEST(a_link_without_end_makes_swaps_free) {
  Random random(3);
  um_link link = plain_link();
  for (int direction = 0; direction < 2; ++direction)
    link.bytes_per_s[direction] = link.both_bytes_per_s[direction] = 1e18;
  for (int round = 0; round < 500; ++round) {
    const Trace trace = random_trace(random);
    const Plan plan = random_plan(random, trace);
    const Run made = run(trace, &plan, options(1 << 20), link);
    CHECK_EQ(made.error, "");
    CHECK(made.step_ns() <= made.result.compute_ns + 2 * (made.result.swap_ins + made.result.swap_outs));
  }
}

// Everything at once: drops, recomputations and waits at random, every model of allocation, many iterations. Such a
// plan may be wrong, and is then refused with a reason; a run that leaks would find no room sooner or later.
TEST(no_plan_breaks_the_executor) {
  Random random(5);
  int went_through = 0, refused = 0, recomputed = 0;
  for (int round = 0; round < 6000; ++round) {
    const Trace trace = random_trace(random);
    const auto uses = uses_of(trace);
    const auto ops = static_cast<int64_t>(trace.op_duration_ns.size());
    std::multimap<std::pair<int64_t, bool>, std::pair<um_plan_kind, int32_t>> actions;
    for (int64_t i = below(random, 12); i > 0; --i) {
      const auto storage = static_cast<int32_t>(below(random, static_cast<int64_t>(uses.size() + 1)));
      if (static_cast<size_t>(storage) >= uses.size() || uses[static_cast<size_t>(storage)].empty()) continue;
      const auto& used = uses[static_cast<size_t>(storage)];
      const int64_t from = used[static_cast<size_t>(below(random, static_cast<int64_t>(used.size())))];
      const auto kind = static_cast<um_plan_kind>(UM_PLAN_SWAP_OUT + below(random, 5));
      if (kind == UM_PLAN_RECOMPUTE) {
        actions.insert({{from, true}, {UM_PLAN_DROP, storage}});
        const int64_t later = std::min(from + 1 + below(random, 5), ops - 1);
        if (later > from) actions.insert({{later, false}, {UM_PLAN_RECOMPUTE, storage}});
      } else {
        actions.insert({{from, below(random, 2) == 0}, {kind, storage}});
      }
    }
    Plan plan(trace);
    for (const auto& [anchor, what] : actions) {
      const int64_t first = what.first == UM_PLAN_RECOMPUTE ? below(random, anchor.first) : 0;
      plan.add(what.first, static_cast<int32_t>(anchor.first), anchor.second, what.second, first);
    }
    um_swap_options costs = options(4096, static_cast<um_eviction>(round % 3), 12);
    costs.allocator = static_cast<uint32_t>(round) % 4;
    costs.chunk_bytes = 512;
    if (costs.allocator == UM_ALLOCATOR_CACHING) costs.budget_bytes = 2 << 20;
    if (costs.allocator == UM_ALLOCATOR_EXACT) costs.budget_bytes = static_cast<uint64_t>(below(random, 1500));
    costs.map_ns_per_chunk = 3;
    const Run made = run(trace, &plan, costs, random_link(random));
    if (made.error.empty()) {
      ++went_through;
      recomputed += made.result.recomputed_ops > 0;
      check_spans(made);
    } else {
      refused += made.error.find("no room") == std::string::npos;
    }
  }
  CHECK(went_through > 1000 && refused > 300 && recomputed > 100);
}

namespace {

// Fewest arrivals for reads of equal storages, one an op, with room for `room` of them: all ways of evicting.
int fewest_arrivals(const std::vector<int32_t>& reads, size_t at, std::set<int32_t> held, size_t room,
                    std::map<std::pair<size_t, std::set<int32_t>>, int>& known) {
  while (at < reads.size() && held.count(reads[at]) != 0) ++at;
  if (at == reads.size()) return 0;
  const auto key = std::make_pair(at, held);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  int fewest = 1 << 20;
  if (held.size() < room) {
    std::set<int32_t> next = held;
    next.insert(reads[at]);
    fewest = fewest_arrivals(reads, at + 1, next, room, known);
  } else {
    for (const int32_t victim : held) {
      std::set<int32_t> next = held;
      next.erase(victim);
      next.insert(reads[at]);
      fewest = std::min(fewest, fewest_arrivals(reads, at + 1, next, room, known));
    }
  }
  return known[key] = fewest + 1;
}

}  // namespace

TEST(evicting_what_is_used_furthest_ahead_needs_the_fewest_arrivals) {
  Random random(4);
  for (int round = 0; round < 200; ++round) {
    const auto count = static_cast<int32_t>(3 + below(random, 4));
    const auto room = static_cast<size_t>(1 + below(random, count - 1));
    Trace trace;
    std::set<int32_t> held;
    for (int32_t storage = 0; storage < count; ++storage) {
      trace.allocate(10);
      if (held.size() < room) held.insert(storage);  // the first ones find room
    }
    std::vector<int32_t> reads;
    for (int i = 0; i < 14; ++i) reads.push_back(static_cast<int32_t>(below(random, count)));
    for (const int32_t storage : reads) trace.use(5, {storage});
    std::map<std::pair<size_t, std::set<int32_t>>, int> known;
    const Run made = run(trace, nullptr, options(room * 10, UM_EVICT_FURTHEST));
    CHECK_EQ(made.error, "");
    CHECK_EQ(made.result.swap_ins, fewest_arrivals(reads, 0, held, room, known));
  }
}
