// What ops of a simulated GPU stood still for, in virtual time: told of by op and by allocation, and nothing is left
// out.
#include <set>

#include "gpu_fixture.h"

using test::Gpu;

namespace {

std::vector<um_event> waits_of(um_device& device) {
  std::vector<um_event> waits;
  um_event event{};
  while (um_events_drain(&device, &event, 1) == 1) {
    if (event.kind == UM_EVENT_WAIT_COPY || event.kind == UM_EVENT_WAIT_ROOM) waits.push_back(event);
  }
  return waits;
}

// After all that it was given.
um_swap_counters counted(Gpu& gpu) {
  const um::CurrentContext current(gpu.backend);
  CHECK_EQ(gpu.backend.call().ctx_synchronize(), um::driver::CUDA_SUCCESS);
  um_swap_counters counters{};
  CHECK_EQ(um_swap_read(gpu.device.get(), &counters), UM_OK);
  return counters;
}

}  // namespace

TEST(what_ops_stand_still_for_is_told_by_op_and_allocation) {
  Gpu gpu(4, 0, 0);
  um_events_enable(gpu.device.get(), 1);
  waits_of(*gpu.device);
  const um_swap_counters before = counted(gpu);
  waits_of(*gpu.device);
  {
    const um::CurrentContext current(gpu.backend);
    gpu.step({{{0}, 100000}, {{1, 2}, 100000}, {{3}, 100000}, {{4, 5}, 100000}, {{6}, 100000}});
  }
  const um_swap_counters after = counted(gpu);
  int64_t copy_ns = 0, room_ns = 0;
  std::set<uint64_t> allocations;
  std::set<uint32_t> ops;
  for (const um_event& event : waits_of(*gpu.device)) {
    CHECK_EQ(event.step, 1u);
    CHECK(event.op_index >= 1 && event.op_index <= 5);
    CHECK_EQ(event.op, um_intern("kernel"));
    CHECK_EQ(event.phase, uint32_t{UM_PHASE_FORWARD});
    (event.kind == UM_EVENT_WAIT_ROOM ? room_ns : copy_ns) += event.duration_ns;
    ops.insert(event.op_index);
    if (event.kind == UM_EVENT_WAIT_ROOM) continue;
    CHECK_EQ(uint32_t{event.cause}, uint32_t{UM_SWAP_ON_DEMAND});
    CHECK(event.allocation != 0);
    if (event.duration_ns > 0) allocations.insert(event.allocation);
  }
  CHECK(copy_ns > 0);
  CHECK_EQ(copy_ns, after.wait_copy_ns - before.wait_copy_ns);
  CHECK_EQ(room_ns, after.wait_room_ns - before.wait_room_ns);
  CHECK_EQ(ops.size(), size_t{5});
  CHECK(allocations.size() >= 5);  // of the ops that use two each stands still for its own
}

TEST(nobody_is_told_of_stalls_that_nobody_asked_for) {
  Gpu gpu(4, 0, 0);
  const um_swap_counters before = counted(gpu);
  {
    const um::CurrentContext current(gpu.backend);
    gpu.step({{{0}, 100000}, {{1, 2}, 100000}, {{3}, 100000}});
  }
  CHECK(counted(gpu).wait_copy_ns > before.wait_copy_ns);
  CHECK_EQ(waits_of(*gpu.device).size(), size_t{0});
}
