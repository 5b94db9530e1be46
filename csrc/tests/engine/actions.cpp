// What the mover asks of the driver for an action once a step is steady, and, printed, what it takes itself: the
// time of the thread that runs the ops, less what that spends inside the driver.
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/clock.h"
#include "engine/device.h"
#include "swapping_fixture.h"

using namespace test;        // NOLINT(google-build-using-namespace)
using namespace um::driver;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kBlocks = 8, kSteps = 61, kWarmUp = 4;

struct Watched {
  std::array<uint64_t, kFunctionCount> calls{};
  int64_t inside_ns = 0;
};
Watched watched;

uint64_t calls(Function function) { return watched.calls[static_cast<size_t>(function)]; }

// A function of the emulated device's driver, its calls counted and timed.
template <auto slot, Function function>
struct Watching;
template <class... Parameters, CUresult (*Table::*slot)(Parameters...), Function function>
struct Watching<slot, function> {
  static CUresult call(Parameters... parameters) {
    const int64_t start_ns = um::now_ns();
    const CUresult result = (emulated()->call.*slot)(parameters...);
    watched.inside_ns += um::now_ns() - start_ns;
    ++watched.calls[static_cast<size_t>(function)];
    return result;
  }
};

um::Backend watched_backend() {
  static const Driver driver = [] {
    Driver made = *emulated();
#define WATCH(name, symbol, version, ...) made.call.name = Watching<&Table::name, Function::name>::call;
    UM_DRIVER_FUNCTIONS(WATCH)
#undef WATCH
    return made;
  }();
  um::Backend backend = um::Backend::open_emulated({64 * kMiB, 1024 * kMiB, UM_COUNTING_ORDERED, 0, 0});
  backend.driver = &driver;
  return backend;
}

// Each block leaves after its op, and is back before that comes again: half of them and one are on the device at a
// time.
fixture::Plan half_of(const fixture::Trace& trace) {
  fixture::Plan plan(trace);
  for (int op = 0; op < kBlocks; ++op) {
    plan.add(UM_PLAN_SWAP_IN, op, false, (op + kBlocks / 2) % kBlocks);
    plan.add(UM_PLAN_SWAP_OUT, op, true, op);
  }
  return plan;
}

// As long as all copies that have begun.
void kernel(um::Backend backend) {
  backend.driver = emulated();  // unwatched
  const int64_t start_ns = um::now_ns();
  {
    const um::CurrentContext current(backend);
    CHECK_EQ(backend.call().ctx_synchronize(), CUDA_SUCCESS);
  }
  watched.inside_ns += um::now_ns() - start_ns;
}

// The median of the steps, outside of the driver and of kernels.
int64_t own_ns(Swapping& device, const um::Backend& backend, const Rounds& rounds, int count) {
  std::vector<int64_t> steps;
  for (int step = 0; step < count; ++step) {
    const int64_t inside_ns = watched.inside_ns, start_ns = um::now_ns();
    CHECK_OK(um_step_set(device, 1));
    for (const test::Moving& block : rounds.blocks)
      device.op({read(block, kChunk)}, [&] { kernel(backend); }, "expect");
    CHECK_OK(um_step_set(device, 0));
    steps.push_back(um::now_ns() - start_ns - (watched.inside_ns - inside_ns));
  }
  std::sort(steps.begin(), steps.end());
  return steps[steps.size() / 2];
}

}  // namespace

TEST(in_a_steady_step_an_action_makes_no_memory_and_takes_little_time) {
  const um::Backend backend = watched_backend();
  Swapping device(um_device::open(backend), kBlocks);
  const Rounds rounds(device, kBlocks);
  const fixture::Plan plan = half_of(rounds.trace);
  const um_plan columns = plan.columns();
  rounds.set(device, nullptr);
  const int64_t without_ns = own_ns(device, backend, rounds, kSteps);
  rounds.set(device, &columns);
  device.set_budget(kBlocks / 2 + 1);
  own_ns(device, backend, rounds, kWarmUp);
  watched = {};
  const um_swap_counters before = device.swaps();
  const int64_t with_ns = own_ns(device, backend, rounds, kSteps);
  const um_swap_counters after = device.swaps();
  CHECK_EQ(after.programs_followed - before.programs_followed, uint64_t{kSteps});
  CHECK_EQ(after.actions - before.actions, int64_t{2 * kBlocks * kSteps});
  CHECK_EQ(after.swap_ins - before.swap_ins, int64_t{kBlocks * kSteps});
  constexpr uint64_t kMoves = uint64_t{kBlocks} * kSteps;
  CHECK_EQ(calls(Function::memcpy_htod_async), kMoves);
  CHECK(calls(Function::mem_set_access) <= 2 * kMoves);  // to catch who writes to what is clean: on this device alone
  for (const Function each : {Function::mem_map, Function::mem_unmap, Function::mem_create, Function::mem_release,
                              Function::mem_address_reserve, Function::mem_address_free, Function::memcpy_dtoh_async}) {
    CHECK_EQ(calls(each), uint64_t{0});
  }
  std::printf("an action takes %lld ns beside the driver's calls\n",
              static_cast<long long>((with_ns - without_ns) / (2 * kBlocks)));
}
