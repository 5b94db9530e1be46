// What the guard asks of the driver for an op whose operands are on the device; tools/guard_instructions.py counts what
// it takes of the processor.
#include <cstdlib>
#include <random>
#include <string>

#include "gpu_fixture.h"
#include "swap_fixture.h"

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
      status = begin(UM_OP_RETRIED);
    }
    CHECK_OK(status);
    um_op_end(device, nullptr, 0);
  }
  return begun;
}

long rounds_told() { return ops_told(10 * kRound) / kRound; }

// Steps of sixty ops, each one of so many programs, in no order. Returns how many ops no program had.
int64_t follow_rounds(uint32_t programs) {
  Gpu gpu(64, 3000, 0);
  const um::CurrentContext current(gpu.backend);
  um_device* const device = gpu.device.get();
  std::vector<uint32_t> names;
  for (uint32_t i = 0; i < kRound + programs; ++i) names.push_back(um_intern(("kernel" + std::to_string(i)).c_str()));
  fixture::Trace trace;
  std::vector<uint64_t> serials;
  for (const test::Moving& block : gpu.blocks) {
    trace.allocate(test::kChunk);
    serials.push_back(test::Device::at(block).serial);
  }
  for (int op = 0; op < kRound; ++op) trace.use(1000, {op % 6, op % 6 + 1, op % 6 + 2});
  const std::vector<uint8_t> states(serials.size(), 1);
  const um_trace columns = trace.columns();
  for (uint32_t i = 0; i < programs; ++i) {
    um_program program{};
    program.trace = &columns;
    program.op_name = &names[i];
    program.first_serials = serials.data();
    program.state = states.data();
    program.h2d_bytes_per_s = 12'000'000'000;
    uint32_t number = 0;
    CHECK_OK(um_program_add(device, &program, &number));
  }
  int64_t unknown = 0;
  std::minstd_rand random(7);
  uint32_t chosen = 0;
  for (long op = 0; op < ops_told(10 * kRound); ++op) {
    const auto at = static_cast<size_t>(op % kRound);
    if (at == 0) {
      CHECK_OK(um_step_set(device, static_cast<uint32_t>(op / kRound + 1)));
      chosen = static_cast<uint32_t>(random() >> 8) % programs;
    }
    std::vector<um_access> accesses;
    for (size_t block = at % 6; block < at % 6 + 3; ++block)
      accesses.push_back(test::read(gpu.blocks[block], test::kChunk));
    CHECK_OK(um_op_begin(device, names[chosen + at], UM_PHASE_FORWARD, 0, 0, accesses.data(), 3));
    um_op_end(device, nullptr, 0);
    if (at + 1 < kRound) continue;
    CHECK_OK(um_step_set(device, 0));
    um_swap_counters swaps{};
    CHECK_OK(um_swap_read(device, &swaps));
    unknown += swaps.unknown_ops;
  }
  return unknown;
}

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
TEST(steps_are_followed_by_one_program) { CHECK_EQ(follow_rounds(1), 0L); }
TEST(steps_are_followed_by_one_of_32_programs) { CHECK_EQ(follow_rounds(32), 0L); }
// From their third round on.
TEST(steps_are_looked_for_in_modules) { CHECK_EQ(run_rounds(true, um_intern("layer")), rounds_told() - 2); }
TEST(steps_are_looked_for_outside_of_modules) { CHECK_EQ(run_rounds(true, 0), rounds_told() - 2); }
