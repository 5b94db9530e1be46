// What the guard asks of the driver for an op whose operands are on the device; tools/guard_instructions.py counts what
// it takes of the processor.
#include <cstdlib>

#include "gpu_fixture.h"

using test::Gpu;
using um::driver::Function;

TEST(an_op_on_what_is_there_asks_for_one_event_and_waits_for_nothing) {
  const char* const told = std::getenv("GUARD_COST_OPS");
  const long ops = told != nullptr ? std::atol(told) : 500;
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
