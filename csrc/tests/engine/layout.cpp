// The layout of a step that repeats, on a simulated GPU: after it was made nothing is mapped, nobody waits, and every
// stay takes its own range.
#include <vector>

#include "mover_gpu_fixture.h"

using test::kChunk;
using test::Rig;
using um::Movable;
using um::driver::Function;

namespace {

// A network whose layers and activations leave after forward and come for backward. Sizes differ, and come to twice the
// budget.
struct Network {
  Network(Rig& on, int32_t depth) : rig(on) {
    for (int32_t i = 0; i < depth; ++i) layers.push_back(rig.make(of(i, 0), 10'000, number(i, 0)));
  }
  ~Network() {
    for (Movable* each : layers) rig.mover->free(each);
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  static int32_t number(size_t layer, int32_t kind) { return static_cast<int32_t>(layer) * 3 + kind; }
  // Bytes of a layer, its activation and its gradient.
  uint64_t of(size_t layer, uint64_t kind) const { return (1 + (layer * scale + kind) % 4) * kChunk - 7 * kind; }

  void step() {
    rig.memory->layout.begin_step();
    std::vector<Movable*> activations;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (i + 1 < layers.size()) rig.mover->swap_in(layers[i + 1]);
      activations.push_back(rig.make(of(i, 1), 10'000, number(i, 1)));
      rig.op({layers[i], activations.back()}, 2'000'000, false);
      for (Movable* each : {layers[i], activations[i]}) rig.mover->swap_out(each);
    }
    for (size_t i = layers.size(); i-- > 0;) {
      for (Movable* each : {layers[i > 0 ? i - 1 : 0], activations[i > 0 ? i - 1 : 0]}) rig.mover->swap_in(each);
      Movable* gradient = rig.make(of(i, 2), 10'000, named ? number(i, 2) : -1);
      rig.op({layers[i], activations[i], gradient}, 2'000'000, false);
      rig.op({layers[i]}, 100'000, true);
      if (i > 0) rig.mover->swap_out(layers[i]);
      rig.mover->free(gradient);
      rig.mover->free(activations[i]);
    }
  }
  // Whether in four steps in a row every stay takes its own range.
  bool settles(int most) {
    for (int kept = 0, steps = 0; steps < most; ++steps) {
      step();
      kept = rig.memory->layout.missed() == 0 ? kept + 1 : 0;
      if (kept == 4) return true;
    }
    return false;
  }

  Rig& rig;
  uint64_t scale = 1;
  bool named = true;  // all storages have a number
  std::vector<Movable*> layers;
};

void check_steady(Rig& rig, Network& network) {
  test::read_loss(rig);
  const int64_t swap_ins = rig.events.counted.swap_ins;
  rig.gpu->take_counts();
  for (int each = 0; each < 8; ++each) {
    network.step();
    CHECK_EQ(rig.memory->layout.missed(), uint64_t{0});
    if (each % 4 == 3) test::read_loss(rig);
  }
  CHECK(rig.events.counted.swap_ins > swap_ins);
  const um::simulator::CallCounts counts = rig.gpu->take_counts();
  for (const auto& each : counts)
    CHECK(each.waits == 0 || &each == &counts[static_cast<size_t>(Function::ctx_synchronize)]);
  for (const Function function :
       {Function::mem_map, Function::mem_unmap, Function::mem_set_access, Function::mem_create})
    CHECK_EQ(counts[static_cast<size_t>(function)].calls, int64_t{0});
}

}  // namespace

TEST(a_step_that_repeats_takes_its_own_ranges) {
  for (const uint64_t budget : {12, 13, 14, 16, 18, 20, 24, 28}) {
    Rig rig(budget);
    Network network(rig, 10);
    CHECK(network.settles(12));
    CHECK_EQ(rig.memory->layout.layouts(), uint64_t{1});
    check_steady(rig, network);
  }
}

TEST(storages_without_a_number_are_told_by_their_sizes) {
  Rig rig(16);
  Network network(rig, 10);
  network.named = false;
  CHECK(network.settles(24));
  check_steady(rig, network);
}

TEST(another_step_takes_what_it_finds_until_it_has_a_layout) {
  Rig rig(18);
  Network network(rig, 10);
  CHECK(network.settles(24));
  network.scale = 3;
  network.step();
  CHECK(rig.memory->layout.missed() > 0);
  CHECK(network.settles(48));
  check_steady(rig, network);
}

// What a layout changes in a step can make that step unlike the one it was made of: few never keep to theirs.
TEST(nearly_all_steps_settle) {
  int unsettled = 0;
  for (uint64_t budget = 12; budget <= 30; ++budget) {
    for (const uint64_t scale : {2, 3, 5}) {
      Rig rig(budget);
      Network network(rig, 10);
      CHECK(network.settles(24));
      network.scale = scale;
      unsettled += network.settles(48) ? 0 : 1;
    }
  }
  CHECK(unsettled <= 5);
}

TEST(a_step_of_another_kind_now_and_then_costs_one_layout_at_most) {
  Rig rig(16);
  Network network(rig, 10);
  CHECK(network.settles(24));
  const uint64_t layouts = rig.memory->layout.layouts();
  for (int each = 0; each < 40; ++each) {
    network.scale = each % 5 == 0 ? 3 : 1;
    network.step();
  }
  CHECK(rig.memory->layout.layouts() <= layouts + 1);
  check_steady(rig, network);
}

TEST(a_smaller_budget_ends_a_layout_and_another_is_made) {
  Rig rig(16);
  Network network(rig, 10);
  CHECK(network.settles(24));
  rig.memory->ranges.set_budget(14);
  network.step();
  test::read_loss(rig);  // what is beyond the budget can go back
  network.step();
  CHECK(network.settles(48));
  check_steady(rig, network);
}

TEST(without_steps_nothing_is_laid_out) {
  Rig rig(16);
  Network network(rig, 10);
  CHECK(network.settles(24));
  rig.memory->layout.stop();
  CHECK_EQ(rig.memory->layout.layouts(), uint64_t{0});
  rig.mover->free(rig.make(3 * kChunk, 10'000));
  CHECK(network.settles(24));
  check_steady(rig, network);
}
