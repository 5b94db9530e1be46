// The mover on a simulated GPU, in virtual time: in a step that repeats, the host waits for nobody and maps nothing.
#include "mover_gpu_fixture.h"

using test::kChunk;
using test::read_loss;
using test::Rig;
using um::Movable;
using um::driver::Function;

namespace {

// Layers of two chunks forward, activations of two chunks that leave, and both backward: twice the budget.
void step(Rig& rig, const std::vector<Movable*>& layers) {
  std::vector<Movable*> activations;
  for (Movable* layer : layers) {
    activations.push_back(rig.make(2 * kChunk - 5, 10'000));
    rig.op({layer, activations.back()}, 2'000'000, false);
    rig.mover->swap_out(activations.back());
  }
  for (size_t i = layers.size(); i-- > 0;) {
    if (i > 0) rig.mover->swap_in(activations[i - 1]);
    Movable* gradient = rig.make(2 * kChunk, 10'000);
    rig.op({layers[i], activations[i], gradient}, 2'000'000, false);
    rig.op({layers[i]}, 100'000, true);
    rig.mover->free(gradient);
    rig.mover->free(activations[i]);
  }
}

}  // namespace

TEST(a_step_that_repeats_waits_for_nobody_and_maps_nothing) {
  Rig rig(16);
  std::vector<Movable*> layers;
  for (int i = 0; i < 8; ++i) layers.push_back(rig.make(2 * kChunk, 10'000));
  const auto run = [&] {
    for (int each = 0; each < 16; ++each) {
      step(rig, layers);
      if (each % 4 == 3) read_loss(rig);
    }
  };
  run();
  const int64_t swap_ins = rig.events.counted.swap_ins;
  rig.gpu->take_counts();
  run();
  const um::simulator::CallCounts counts = rig.gpu->take_counts();
  CHECK(rig.events.counted.swap_ins > swap_ins);
  const auto of = [&](Function function) { return counts[static_cast<size_t>(function)]; };
  for (const auto& each : counts)
    CHECK(each.waits == 0 || &each == &counts[static_cast<size_t>(Function::ctx_synchronize)]);
  for (const Function function : {Function::mem_map, Function::mem_unmap, Function::mem_set_access,
                                  Function::mem_create, Function::mem_host_alloc, Function::event_create}) {
    CHECK_EQ(of(function).calls, int64_t{0});
  }
  for (Movable* each : layers) rig.mover->free(each);
}
