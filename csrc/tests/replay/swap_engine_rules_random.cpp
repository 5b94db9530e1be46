// Plans simulated by the engine's rules: counts of random ones against a model without any time.
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "check.h"
#include "swap_fixture.h"

using namespace fixture;

namespace {

using Random = std::mt19937;

int64_t below(Random& random, int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); }

struct Action {
  um_plan_kind kind;
  int32_t storage;
};

// Ops that use and make storages, each followed by one that only takes time: long enough for all copies.
struct Program {
  Trace trace;
  std::multimap<int32_t, Action> before, after;  // by op

  explicit Program(Random& random) {
    std::vector<int32_t> live;
    for (int64_t i = 1 + below(random, 3); i > 0; --i) live.push_back(trace.allocate(kChunk * (1 + below(random, 3))));
    for (int64_t round = 0; round < 14; ++round) {
      const int32_t op = trace.op(1000);
      std::set<int32_t> touched;
      for (int64_t i = below(random, 3); i > 0; --i) {
        touched.insert(live[static_cast<size_t>(below(random, static_cast<int64_t>(live.size())))]);
      }
      for (const int32_t each : touched) trace.access(each, below(random, 3) == 0 ? kRW : kR);
      if (below(random, 2) == 0) {
        live.push_back(trace.allocate(kChunk * (1 + below(random, 3))));
        trace.access(live.back(), kWholeWrite);
      }
      trace.end();
      std::shuffle(live.begin(), live.end(), random);
      if (live.size() > 4) {
        trace.free(live.back());
        live.pop_back();
      }
      for (const int32_t each : live) {
        const int64_t what = below(random, 6);
        if (what < 2) after.insert({op, {what == 0 ? UM_PLAN_SWAP_OUT : UM_PLAN_DROP, each}});
        // One at a time: what one sends away as a spare is still leaving when the next is asked for.
        if (what == 2 && before.count(op + 1) == 0) before.insert({op + 1, {UM_PLAN_SWAP_IN, each}});
      }
      trace.use(10'000, {});
    }
  }

  Plan plan() const {
    Plan made(trace);
    for (int32_t op = 0; op < static_cast<int32_t>(trace.op_duration_ns.size()); ++op) {
      for (auto [each, end] = before.equal_range(op); each != end; ++each) {
        made.before(op, each->second.kind, each->second.storage);
      }
      for (auto [each, end] = after.equal_range(op); each != end; ++each) {
        made.behind(op, each->second.kind, each->second.storage);
      }
    }
    return made;
  }
};

// The rules where every copy takes no time at all.
class Model {
 public:
  int64_t swap_ins = 0, swap_outs = 0, clean_drops = 0, redundant = 0, on_demand = 0;
  bool failed = false;

  Model(const Program& program, int64_t room) : program_(program), trace_(program.trace), free_(room) {
    each_.resize(trace_.storage_bytes.size());
    std::set<int32_t> first;
    const Plan plan = program.plan();
    for (size_t row = 0; row < plan.storage.size(); ++row) {
      if (first.insert(plan.storage[row]).second) {
        each_[static_cast<size_t>(plan.storage[row])].starts_on_host = plan.kind[row] == UM_PLAN_SWAP_IN;
      }
    }
    events(-1);
    for (int32_t op = 0; op < static_cast<int32_t>(trace_.op_duration_ns.size()) && !failed; ++op) step(op);
  }

 private:
  struct Storage {
    bool alive, device, written, clean, spare, waits, starts_on_host;
    int64_t used;
  };

  int64_t chunks(int32_t storage) const { return trace_.storage_bytes[static_cast<size_t>(storage)] / kChunk; }
  Storage& at(int32_t storage) { return each_[static_cast<size_t>(storage)]; }

  void leave(int32_t storage) {
    Storage& one = at(storage);
    ++(one.written && !one.clean ? swap_outs : clean_drops);
    one.device = one.spare = false;
    one.clean = true;
    free_ += chunks(storage);
  }

  bool spare_leaves() {
    int32_t oldest = -1;
    for (int32_t storage = 0; storage < static_cast<int32_t>(each_.size()); ++storage) {
      if (!at(storage).spare || pinned_.count(storage) != 0) continue;
      if (oldest < 0 || at(storage).used < at(oldest).used) oldest = storage;
    }
    if (oldest >= 0) leave(oldest);
    return oldest >= 0;
  }

  bool come(int32_t storage) {
    while (free_ < chunks(storage)) {
      if (!spare_leaves()) return false;
    }
    free_ -= chunks(storage);
    at(storage).device = true;
    at(storage).waits = false;
    at(storage).used = ++now_;
    swap_ins += at(storage).written;
    return true;
  }

  void progress() {
    while (!queue_.empty() && come(queue_.front())) queue_.pop_front();
  }

  void act(const Action& action) {
    Storage& one = at(action.storage);
    switch (action.kind) {
      case UM_PLAN_SWAP_IN:
        if (one.device || one.waits || !one.written) return void(++redundant);
        one.waits = true;
        queue_.push_back(action.storage);
        return progress();
      case UM_PLAN_SWAP_OUT:
        if (one.waits) {
          one.waits = false;
          queue_.erase(std::find(queue_.begin(), queue_.end(), action.storage));
          return;
        }
        return one.device ? leave(action.storage) : void(++redundant);
      default:
        if (!one.device || one.spare) return void(++redundant);
        if (one.clean || !one.written) return leave(action.storage);
        one.spare = true;
    }
  }

  void events(int32_t op) {
    for (size_t row = 0; row < trace_.event_op.size(); ++row) {
      if (trace_.event_op[row] != op) continue;
      const int32_t storage = trace_.event_storage[row];
      Storage& one = at(storage);
      if (trace_.event_kind[row] == 0) {
        one.alive = true;
        one.written = op < 0;
        if (op < 0 && one.starts_on_host) {
          one.clean = true;
        } else {
          const int64_t before = swap_ins;
          failed |= !come(storage);
          swap_ins = before;
        }
      } else {
        if (one.device) free_ += chunks(storage);
        if (one.waits) queue_.erase(std::find(queue_.begin(), queue_.end(), storage));
        one = {};
      }
    }
  }

  void step(int32_t op) {
    pinned_.clear();
    for (auto [each, end] = program_.before.equal_range(op); each != end; ++each) act(each->second);
    std::vector<std::pair<int32_t, bool>> uses;
    std::set<int32_t> made;
    for (size_t row = 0; row < trace_.event_op.size(); ++row) {
      if (trace_.event_op[row] == op && trace_.event_kind[row] == 0) made.insert(trace_.event_storage[row]);
    }
    for (size_t row = 0; row < trace_.access_op.size(); ++row) {
      if (trace_.access_op[row] != op) continue;
      uses.push_back({trace_.access_storage[row], (trace_.access_flags[row] & 2) != 0});
      pinned_.insert(trace_.access_storage[row]);
    }
    use_all(uses, made);
    events_and_writes(op, uses);
    progress();
    pinned_.clear();
    for (auto [each, end] = program_.after.equal_range(op); each != end; ++each) act(each->second);
  }

  void use_all(const std::vector<std::pair<int32_t, bool>>& uses, const std::set<int32_t>& made) {
    for (const auto& [storage, writes] : uses) {
      Storage& one = at(storage);
      if (made.count(storage) != 0 || one.device) continue;
      if (one.waits) {
        one.waits = false;
        queue_.erase(std::find(queue_.begin(), queue_.end(), storage));
      } else {
        on_demand += one.written;
      }
      failed |= !come(storage);
    }
    for (const bool write : {false, true}) {
      for (const auto& [storage, writes] : uses) {
        if (writes != write || made.count(storage) != 0) continue;
        at(storage).used = ++now_;
        at(storage).spare = false;
      }
    }
  }

  void events_and_writes(int32_t op, const std::vector<std::pair<int32_t, bool>>& uses) {
    events(op);
    for (const auto& [storage, writes] : uses) {
      if (!writes || !at(storage).alive) continue;
      at(storage).written = true;
      at(storage).clean = false;
    }
  }

  const Program& program_;
  const Trace& trace_;
  int64_t free_, now_ = 0;
  std::vector<Storage> each_;
  std::deque<int32_t> queue_;
  std::set<int32_t> pinned_;
};

}  // namespace

TEST(counts_are_those_of_a_model_without_time) {
  Random random(11);
  um_link link = plain_link();
  for (int direction = 0; direction < 2; ++direction)
    link.bytes_per_s[direction] = link.both_bytes_per_s[direction] = 1e18;
  int went_through = 0, spares_left = 0;
  for (int round = 0; round < 3000; ++round) {
    const Program program(random);
    const Plan plan = program.plan();
    const int64_t room = 4 + below(random, 12);
    const Run made = run(program.trace, &plan, in_chunks(room), link);
    const Model model(program, room);
    CHECK_EQ(!made.error.empty(), model.failed);
    if (model.failed || !made.error.empty()) continue;
    ++went_through;
    spares_left += model.swap_outs > 0;
    CHECK_EQ(made.result.swap_ins, model.swap_ins);
    CHECK_EQ(made.result.swap_outs, model.swap_outs);
    CHECK_EQ(made.result.clean_drops, model.clean_drops);
    CHECK_EQ(made.result.on_demand_swap_ins, model.on_demand);
    CHECK_EQ(made.result.redundant_actions, model.redundant);
    CHECK(made.result.peak_reserved_bytes <= room * kChunk);
  }
  CHECK(went_through > 1000 && spares_left > 500);
}
