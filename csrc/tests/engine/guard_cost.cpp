// What the guard asks of the driver for an op whose operands are on the device; tools/guard_instructions.py counts what
// it takes of the processor.
#include <cstdlib>
#include <string>

#include "gpu_fixture.h"

using test::Gpu;
using um::driver::Function;

namespace {

long ops_told(long otherwise) {
  const char* const told = std::getenv("GUARD_COST_OPS");
  return told != nullptr ? std::atol(told) : otherwise;
}

constexpr long kRound = 60;

// Rounds of sixty ops that nobody marks, inside of a module where one is given. Returns how many begin a step.
long run_rounds(bool looks, uint32_t module) {
  Gpu gpu(64, 3000, 0);
  const um::CurrentContext current(gpu.backend);
  um_device* const device = gpu.device.get();
  CHECK_OK(um_repetition_set(device, looks));
  std::vector<uint32_t> names;
  for (long i = 0; i < kRound; ++i) names.push_back(um_intern(("kernel" + std::to_string(i)).c_str()));
  long begun = 0;
  for (long op = 0; op < ops_told(10 * kRound); ++op) {
    const auto at = static_cast<size_t>(op % kRound);
    if (module != 0 && at == 0) begun += um_repetition_call(device, module, 0);
    std::vector<um_access> accesses;
    for (size_t block = at % 6; block < at % 6 + 3; ++block)
      accesses.push_back(test::read(gpu.blocks[block], test::kChunk));
    const auto begin = [&](uint32_t flags) {
      return um_op_begin(device, names[at], UM_PHASE_FORWARD, module, flags, accesses.data(), 3);
    };
    um_status status = begin(0);
    if (status == UM_STEP_BEGINS) {
      ++begun;
      status = begin(UM_OP_AT_EDGE);
    }
    CHECK_OK(status);
    um_op_end(device, nullptr, 0);
  }
  return begun;
}

long rounds_told() { return ops_told(10 * kRound) / kRound; }

}  // namespace

TEST(an_op_on_what_is_there_asks_for_one_event_and_waits_for_nothing) {
  const long ops = ops_told(500);
  Gpu device(64, 3000, 0);
  const um::CurrentContext current(device.backend);
  const auto run = [&](long count) {
    for (long op = 0; op < count; ++op) {
      const auto first = static_cast<size_t>(op % 6);
      device.run({{first, first + 1, first + 2}, 2000}, op % 4 == 0);
    }
  };
  // The first ops take chunks that are new; by the end of the wait every block has arrived.
  run(100);
  CHECK_EQ(device.backend.call().ctx_synchronize(), um::driver::CUDA_SUCCESS);
  run(100);
  static_cast<void>(device.gpu->take_counts());
  run(ops);
  const um::simulator::CallCounts counts = device.gpu->take_counts();
  const auto calls = [&](Function function) { return counts[static_cast<size_t>(function)].calls; };
  CHECK_EQ(calls(Function::event_record), int64_t{ops});
  for (const Function none :
       {Function::event_create, Function::stream_wait_event, Function::event_synchronize, Function::ctx_synchronize,
        Function::mem_map, Function::mem_set_access, Function::memcpy_htod_async, Function::memcpy_dtoh_async}) {
    CHECK_EQ(calls(none), int64_t{0});
  }
}

TEST(steps_are_marked) { CHECK_EQ(run_rounds(false, 0), 0L); }
// From their third round on.
TEST(steps_are_looked_for_in_modules) { CHECK_EQ(run_rounds(true, um_intern("layer")), rounds_told() - 2); }
TEST(steps_are_looked_for_outside_of_modules) { CHECK_EQ(run_rounds(true, 0), rounds_told() - 2); }
