// One truth: what the emulated device observes, with real bytes and real page faults, is what the simulator predicts.
//
// Random traces run on both. On the emulated device they run as a program would: through the C ABI, ops touching their
// memory. Ordered counting must equal the guard's prediction, raw counting the replay of the services it saw, exactly.
#include <cstdint>
#include <random>
#include <vector>

#include "engine_fixture.h"

using test::kMiB;
using test::kPage;

namespace {

enum Kind : uint8_t { allocate, free_storage, host_write, host_read, service_read, service_write };

struct Events {
  std::vector<uint8_t> kind, inside;
  std::vector<int32_t> op, storage;
  std::vector<int64_t> offset_bytes, bytes;

  void add(Kind what, int32_t at, bool within, int32_t of, int64_t offset = 0, int64_t size = 0) {
    kind.push_back(what);
    inside.push_back(within);
    op.push_back(at);
    storage.push_back(of);
    offset_bytes.push_back(offset);
    bytes.push_back(size);
  }
};

struct Trace {
  std::vector<int64_t> storage_bytes;
  std::vector<uint8_t> storage_role;
  std::vector<int32_t> successor;
  std::vector<um_placement> placements;
  std::vector<uint8_t> creates;
  std::vector<int32_t> access_op, access_storage;
  std::vector<int64_t> access_offset, access_bytes;
  std::vector<uint8_t> access_flags;
  Events events;

  int32_t add_storage(int64_t bytes, const um_placement& placement) {
    storage_bytes.push_back(bytes);
    storage_role.push_back(static_cast<uint8_t>(placement.role));
    successor.push_back(-1);
    placements.push_back(placement);
    return static_cast<int32_t>(storage_bytes.size() - 1);
  }
  int32_t add_op(bool creates_only) {
    creates.push_back(creates_only);
    return static_cast<int32_t>(creates.size() - 1);
  }
  void add_access(int32_t op, int32_t storage, int64_t offset, int64_t bytes, bool write) {
    access_op.push_back(op);
    access_storage.push_back(storage);
    access_offset.push_back(offset);
    access_bytes.push_back(bytes);
    access_flags.push_back(write ? 2 : 1);
  }
};

using Random = std::mt19937_64;
int64_t between(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

struct Setting {
  uint64_t capacity_bytes, budget_bytes;
  um_advice advice[3];
  bool plain_parameters;
};

// A training step in miniature: storages that stay, storages that hand their name over, and many that come and go.
// Working sets stay below `most_bytes`.
Trace random_trace(Random& random, const Setting& setting, int ops, int64_t most_bytes) {
  Trace trace;
  std::vector<int32_t> live;
  const auto size = [&] {
    return random() % 3 == 0 ? between(random, 1, 64 * 1024) : between(random, 1, most_bytes / 4);
  };
  const auto placement = [&](uint32_t role) {
    const bool plain = setting.plain_parameters && role == UM_ROLE_PARAMETER;
    return um_placement{plain ? UM_MEMORY_PREFER_DEVICE : UM_MEMORY_MANAGED, role, setting.advice[role]};
  };
  for (int i = 0; i < 8; ++i) {
    const int32_t storage = trace.add_storage(size(), placement(static_cast<uint32_t>(random() % 3)));
    trace.events.add(allocate, -1, false, storage);
    if (random() % 2 == 0) trace.events.add(host_write, -1, false, storage, 0, trace.storage_bytes.back());
    live.push_back(storage);
  }
  for (int i = 0; i < ops; ++i) {
    const int32_t op = trace.add_op(random() % 8 == 0);
    int64_t room = most_bytes;
    const auto touch = [&](int32_t storage, bool write) {
      const int64_t bytes = trace.storage_bytes[static_cast<size_t>(storage)];
      const int64_t offset = between(random, 0, bytes - 1);
      const int64_t length = random() % 2 == 0 ? bytes - offset : between(random, 1, bytes - offset);
      const int64_t pages = (length / static_cast<int64_t>(kPage) + 2) * static_cast<int64_t>(kPage);
      if (pages > room) return;
      room -= pages;
      trace.add_access(op, storage, offset, length, write);
    };
    if (trace.creates.back() == 0) {
      for (int64_t inputs = between(random, 0, 4); inputs > 0; --inputs)
        touch(live[random() % live.size()], random() % 3 == 0);
    }
    std::vector<int32_t> scratch;
    for (int64_t outputs = between(random, 0, 2); outputs > 0; --outputs) {
      const int64_t bytes = size();
      const int64_t pages = (bytes / static_cast<int64_t>(kPage) + 2) * static_cast<int64_t>(kPage);
      if (pages > room) continue;
      room -= pages;
      const int32_t storage = trace.add_storage(bytes, placement(UM_ROLE_INTERMEDIATE));
      trace.events.add(allocate, op, true, storage);
      if (random() % 4 == 0) {
        scratch.push_back(storage);
      } else {
        live.push_back(storage);
        trace.add_access(op, storage, 0, bytes, true);
      }
    }
    for (const int32_t storage : scratch) trace.events.add(free_storage, op, true, storage);
    while (live.size() > 20 || (live.size() > 4 && random() % 3 == 0)) {
      const size_t at = random() % live.size();
      trace.events.add(free_storage, op, false, live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (random() % 10 == 0) {
      const int32_t storage = live[random() % live.size()];
      trace.events.add(random() % 2 == 0 ? host_write : host_read, op, false, storage, 0,
                       trace.storage_bytes[static_cast<size_t>(storage)]);
    }
  }
  // Some of what died is taken over by what was made in the trace and is still there.
  std::vector<bool> alive(trace.storage_bytes.size());
  for (const int32_t storage : live) alive[static_cast<size_t>(storage)] = true;
  for (size_t storage = 0; storage < 8; ++storage) {
    for (size_t heir = 8; !alive[storage] && heir < alive.size(); ++heir) {
      if (!alive[heir] || trace.storage_bytes[heir] < trace.storage_bytes[storage]) continue;
      trace.successor[storage] = static_cast<int32_t>(heir);
      alive[heir] = false;
      break;
    }
  }
  return trace;
}

// ---- the emulated device --------------------------------------------------------------------------------------------

class Run {
 public:
  Run(const Trace& trace, const Setting& setting, um_counting counting)
      : device(setting.capacity_bytes, counting, 2048 * kMiB),
        trace_(trace),
        addresses_(trace.storage_bytes.size()),
        continued_(trace.storage_bytes.size()) {
    if (setting.budget_bytes != 0) CHECK_OK(um_budget_set(device, setting.budget_bytes));
    um_events_enable(device, 1);
  }
  ~Run() {
    for (unsigned char* address : addresses_) um_free(address);
  }

  // The counters before the first op (if `first`) and after the last.
  std::vector<um_counters> iterate(bool first) {
    std::vector<um_counters> seen;
    next_event_ = next_access_ = 0;
    happen(-1, false);
    if (first) seen.push_back(device.counters());
    for (int32_t op = 0; op < static_cast<int32_t>(trace_.creates.size()); ++op) {
      run_op(op);
      happen(op, false);
    }
    seen.push_back(device.counters());
    return seen;
  }

  // What outlives the trace goes on; a successor under the name of what it replaced.
  void hand_over() {
    const size_t count = addresses_.size();
    std::vector<bool> before(count), dies(count);
    for (size_t row = 0; row < trace_.events.kind.size(); ++row) {
      const auto storage = static_cast<size_t>(trace_.events.storage[row]);
      if (trace_.events.kind[row] == allocate) before[storage] = trace_.events.op[row] < 0;
      if (trace_.events.kind[row] == free_storage) dies[storage] = true;
    }
    std::vector<unsigned char*> next(count);
    for (size_t storage = 0; storage < count; ++storage) {
      if (!before[storage]) continue;
      const size_t from = dies[storage] ? static_cast<size_t>(trace_.successor[storage]) : storage;
      if (dies[storage] && trace_.successor[storage] < 0) continue;
      next[storage] = addresses_[from];
      addresses_[from] = nullptr;
    }
    for (unsigned char*& address : addresses_) {
      um_free(address);
      address = nullptr;
    }
    addresses_ = next;
    for (size_t storage = 0; storage < count; ++storage) continued_[storage] = next[storage] != nullptr;
  }

  test::Device device;
  Events with_services;  // the trace's events and the services between them

 private:
  void run_op(int32_t op) {
    std::vector<um_access> accesses;
    const size_t first = next_access_;
    for (; next_access_ < trace_.access_op.size() && trace_.access_op[next_access_] == op; ++next_access_) {
      unsigned char* address = addresses_[static_cast<size_t>(trace_.access_storage[next_access_])];
      if (address == nullptr) continue;  // it will be made inside
      accesses.push_back({address + trace_.access_offset[next_access_],
                          static_cast<uint64_t>(trace_.access_bytes[next_access_]),
                          trace_.access_flags[next_access_] == 2u, 0});
    }
    CHECK_OK(um_op_begin(device, 0, 0, 0, trace_.creates[static_cast<size_t>(op)], accesses.data(),
                         static_cast<uint32_t>(accesses.size())));
    note_services(op, true);
    happen(op, true);
    for (size_t row = first; row < next_access_; ++row) {
      unsigned char* address = addresses_[static_cast<size_t>(trace_.access_storage[row])];
      if (trace_.creates[static_cast<size_t>(op)] == 0)
        use(address + trace_.access_offset[row], trace_.access_bytes[row], trace_.access_flags[row] == 2u);
    }
    um_op_end(device, nullptr, 0);
    note_services(op, true);
  }

  // One byte of each page, as a kernel with one thread.
  static void use(volatile unsigned char* address, int64_t bytes, bool write) {
    const auto page = static_cast<int64_t>(kPage);
    const int64_t to_next = page - static_cast<int64_t>(reinterpret_cast<uint64_t>(address) % kPage);
    for (int64_t at = 0; at < bytes; at += at == 0 ? to_next : page) {
      if (write)
        address[at] = 1;
      else
        static_cast<void>(address[at]);
    }
  }

  void happen(int32_t op, bool inside) {
    const Events& events = trace_.events;
    for (; next_event_ < events.kind.size() && events.op[next_event_] == op &&
           (events.inside[next_event_] != 0) == inside;
         ++next_event_) {
      const auto storage = static_cast<size_t>(events.storage[next_event_]);
      if (op < 0 && continued_[storage]) continue;
      unsigned char*& address = addresses_[storage];
      std::vector<unsigned char> host(static_cast<size_t>(events.bytes[next_event_]));
      switch (events.kind[next_event_]) {
        case allocate: {
          void* made = nullptr;
          CHECK_OK(um_allocate(device, static_cast<uint64_t>(trace_.storage_bytes[storage]),
                               &trace_.placements[storage], nullptr, &made));
          address = static_cast<unsigned char*>(made);
          break;
        }
        case free_storage:
          um_free(address);
          address = nullptr;
          break;
        case host_write:
          CHECK_OK(um_copy_from_host(address, host.data(), host.size()));
          break;
        case host_read:
          CHECK_OK(um_copy_to_host(host.data(), address, host.size()));
          break;
        default:
          CHECK(false);
      }
      with_services.add(static_cast<Kind>(events.kind[next_event_]), op, inside, events.storage[next_event_],
                        events.offset_bytes[next_event_], events.bytes[next_event_]);
      note_services(op, inside);
    }
  }

  void note_services(int32_t op, bool inside) {
    for (const um_event& event : device.events()) {
      if (event.kind != UM_EVENT_FAULT_GROUP) continue;
      for (size_t storage = 0; storage < addresses_.size(); ++storage) {
        const auto start = reinterpret_cast<uint64_t>(addresses_[storage]);
        const auto bytes = static_cast<uint64_t>(trace_.storage_bytes[storage]);
        if (start == 0 || event.address < start || event.address >= start + bytes) continue;
        with_services.add(event.write != 0 ? service_write : service_read, op, inside, static_cast<int32_t>(storage),
                          static_cast<int64_t>(event.address / kPage * kPage) - static_cast<int64_t>(start));
        break;
      }
    }
  }

  const Trace& trace_;
  std::vector<unsigned char*> addresses_;
  std::vector<bool> continued_;  // by storage: it was there when this iteration began
  size_t next_event_ = 0, next_access_ = 0;
};

// ---- the simulated one ----------------------------------------------------------------------------------------------

std::vector<um_simulated_step> simulate(const Trace& trace, const Events& events, const Setting& setting,
                                        um_service service, uint32_t iterations) {
  const std::vector<int32_t> zeros(trace.creates.size());
  const std::vector<int64_t> durations(trace.creates.size(), 1000);
  const std::vector<uint8_t> no(trace.creates.size());
  um_trace view{};
  view.storage_count = trace.storage_bytes.size();
  view.op_count = trace.creates.size();
  view.access_count = trace.access_op.size();
  view.event_count = events.kind.size();
  view.storage_bytes = trace.storage_bytes.data();
  view.storage_role = trace.storage_role.data();
  view.storage_successor = trace.successor.data();
  view.op_phase = no.data();
  view.op_step = zeros.data();
  view.op_duration_ns = durations.data();
  view.op_creates = trace.creates.data();
  view.op_host_touch = no.data();
  view.op_window_pages = view.op_run_pages = view.op_faults_per_service = zeros.data();
  view.access_op = trace.access_op.data();
  view.access_storage = trace.access_storage.data();
  view.access_offset_bytes = trace.access_offset.data();
  view.access_bytes = trace.access_bytes.data();
  view.access_flags = trace.access_flags.data();
  view.event_kind = events.kind.data();
  view.event_op = events.op.data();
  view.event_inside = events.inside.data();
  view.event_storage = events.storage.data();
  view.event_offset_bytes = events.offset_bytes.data();
  view.event_bytes = events.bytes.data();
  um_unified_options options{};
  options.capacity_bytes = setting.capacity_bytes;
  options.budget_bytes = setting.budget_bytes;
  options.placements = trace.placements.data();
  options.link = {{2400, 2400}, {12e9, 12e9}, {11e9, 11e9}, {1, 1}};
  options.costs = {256,   0,     15000, 50,     5000, 30000,       100000,      2400,         20000,       20000,
                   10000, 15000, 15000, 200000, 0,    12000000000, 12000000000, 600000000000, 11000000000, 0};
  options.launch_ns = 5000;
  options.concurrency = {384, 8, 64};
  options.service = service;
  options.iterations = iterations;
  um_simulation* made = nullptr;
  CHECK_OK(um_simulate_unified(&view, nullptr, &options, &made));
  std::vector<um_simulated_step> steps(um_simulation_steps(made, nullptr, 0));
  um_simulation_steps(made, steps.data(), steps.size());
  um_simulation_destroy(made);
  return steps;
}

void check_same(const um_counters& predicted, const um_counters& now, const um_counters& before) {
  const auto seen = [&](int64_t um_counters::* field) { return now.*field - before.*field; };
  CHECK_EQ(predicted.fault_groups, seen(&um_counters::fault_groups));
  CHECK_EQ(predicted.unordered_faults, seen(&um_counters::unordered_faults));
  CHECK_EQ(predicted.first_touches, seen(&um_counters::first_touches));
  for (int cause = 0; cause < UM_CAUSE_COUNT; ++cause) {
    CHECK_EQ(predicted.bytes_h2d[cause], now.bytes_h2d[cause] - before.bytes_h2d[cause]);
    CHECK_EQ(predicted.bytes_d2h[cause], now.bytes_d2h[cause] - before.bytes_d2h[cause]);
  }
  CHECK_EQ(predicted.evictions, seen(&um_counters::evictions));
  CHECK_EQ(predicted.evictions_dropped, seen(&um_counters::evictions_dropped));
  CHECK_EQ(predicted.collapses, seen(&um_counters::collapses));
  CHECK_EQ(predicted.remote_maps, seen(&um_counters::remote_maps));
  CHECK_EQ(predicted.op_count, seen(&um_counters::op_count));
  CHECK_EQ(predicted.oversized_ops, seen(&um_counters::oversized_ops));
}

Setting random_setting(Random& random) {
  Setting setting{};
  setting.capacity_bytes = static_cast<uint64_t>(between(random, 12, 32)) * kPage;
  if (random() % 2 == 0) setting.budget_bytes = static_cast<uint64_t>(between(random, 4, 24)) * kPage;
  for (um_advice& advice : setting.advice) advice = static_cast<um_advice>(random() % UM_ADVICE_COUNT);
  setting.plain_parameters = random() % 5 == 0;
  return setting;
}

}  // namespace

TEST(ordered_counting_is_what_the_guard_predicts) {
  int64_t evictions = 0, collapses = 0;
  for (uint64_t seed = 0; seed < check::times(40); ++seed) {
    Random random(seed);
    const Setting setting = random_setting(random);
    const Trace trace = random_trace(random, setting, 40, static_cast<int64_t>(setting.capacity_bytes / 3));
    Run run(trace, setting, UM_COUNTING_ORDERED);
    constexpr uint32_t kIterations = 3;
    const std::vector<um_simulated_step> predicted =
        simulate(trace, trace.events, setting, UM_SERVICE_GUARD, kIterations);
    CHECK_EQ(predicted.size(), kIterations + 1u);
    um_counters before{};
    size_t step = 0;
    for (uint32_t iteration = 0; iteration < kIterations; ++iteration) {
      if (iteration > 0) run.hand_over();
      for (const um_counters& now : run.iterate(iteration == 0)) {
        check_same(predicted[step++].counters, now, before);
        before = now;
      }
    }
    CHECK_EQ(predicted.back().memory.resident_bytes, run.device.memory().resident_bytes);
    CHECK_EQ(predicted.back().memory.host_bytes, run.device.memory().host_bytes);
    CHECK_EQ(predicted.back().memory.requested_bytes, run.device.memory().requested_bytes);
    CHECK_EQ(predicted.back().memory.reserved_bytes, run.device.memory().reserved_bytes);
    evictions += before.evictions;
    collapses += before.collapses;
  }
  CHECK(evictions > 0);
  CHECK(collapses > 0);
}

TEST(raw_counting_is_the_replay_of_its_services) {
  int64_t faults = 0;
  for (uint64_t seed = 100; seed < 100 + check::times(30); ++seed) {
    Random random(seed);
    Setting setting = random_setting(random);
    const Trace trace = random_trace(random, setting, 40, static_cast<int64_t>(setting.capacity_bytes / 3));
    Run run(trace, setting, UM_COUNTING_RAW);
    const std::vector<um_counters> seen = run.iterate(true);
    const std::vector<um_simulated_step> predicted =
        simulate(trace, run.with_services, setting, UM_SERVICE_RECORDED, 1);
    check_same(predicted[0].counters, seen[0], um_counters{});
    check_same(predicted[1].counters, seen[1], seen[0]);
    faults += seen[1].fault_groups;
  }
  CHECK(faults > 0);
}
