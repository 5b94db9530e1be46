// Where steps begin that nobody marks: the places at which ops are told, in loops of each kind.
#include <string>
#include <vector>

#include "engine_fixture.h"

using test::Device;
using test::kPage;
using test::read;
using test::write;

namespace {

constexpr uint32_t kOutside = 0;

// A loop whose ops go through the guard, as the interposer calls it.
class Loop {
 public:
  explicit Loop(bool differentiated = false) : differentiated_(differentiated) {
    CHECK_OK(um_repetition_set(device_, 1));
  }

  unsigned char* lasting(uint64_t bytes = kBytes) { return device_.allocate(bytes); }
  void op(const char* name, const std::vector<um_access>& accesses, uint32_t phase = UM_PHASE_FORWARD,
          uint32_t module = kOutside) {
    const uint32_t flags = differentiated_ && phase == UM_PHASE_FORWARD ? uint32_t{UM_OP_DIFFERENTIATED} : 0u;
    const auto begin = [&](uint32_t more) {
      return um_op_begin(device_, um_intern(name), phase, module, flags | more, accesses.data(),
                         static_cast<uint32_t>(accesses.size()));
    };
    um_status status = begin(0);
    if (status == UM_STEP_BEGINS) {
      edges.push_back(name);
      CHECK_OK(um_step_set(device_, static_cast<uint32_t>(edges.size())));
      status = begin(UM_OP_RETRIED);
    }
    CHECK_OK(status);
    um_op_end(device_, nullptr, 0);
  }
  void call(uint64_t module) {
    if (um_repetition_call(device_, module, differentiated_) != 0) edges.push_back("call " + std::to_string(module));
  }

  // `layers` are used one after another, each with what the one before it made.
  void forward(const std::vector<unsigned char*>& layers, uint32_t module = kOutside) {
    for (unsigned char* layer : layers) op("mm", {read(layer, kBytes)}, UM_PHASE_FORWARD, module);
  }
  void backward(const std::vector<unsigned char*>& layers) {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer)
      op("mm", {read(*layer, kBytes)}, UM_PHASE_BACKWARD);
  }
  void update(const std::vector<unsigned char*>& layers) {
    for (unsigned char* layer : layers) op("sub_", {write(layer, kBytes)}, UM_PHASE_NONE);
  }
  std::vector<unsigned char*> layers(int count) {
    std::vector<unsigned char*> all;
    for (int i = 0; i < count; ++i) all.push_back(lasting());
    return all;
  }

  std::vector<std::string> edges;
  static constexpr uint64_t kBytes = uint64_t{2} << 20, kFewBytes = 4096;

 private:
  Device device_{256 * kPage};
  bool differentiated_;
};

std::vector<std::string> times(size_t count, const std::string& edge) { return std::vector<std::string>(count, edge); }

// The third time that it comes round is the first step.
TEST(a_step_begins_where_the_first_layer_is_used) {
  Loop loop;
  const auto layers = loop.layers(12);
  for (int i = 0; i < 10; ++i) loop.forward(layers);
  CHECK(loop.edges == times(8, "mm"));
}

TEST(a_constant_of_every_layer_is_no_edge) {
  Loop loop;
  unsigned char* const constant = loop.lasting();
  const auto layers = loop.layers(12);
  for (int i = 0; i < 10; ++i) {
    for (unsigned char* layer : layers) {
      loop.op("mm", {read(layer, Loop::kBytes)});
      loop.op("mul", {read(constant, Loop::kBytes)});
    }
  }
  CHECK(loop.edges == times(8, "mm"));
}

TEST(a_step_begins_with_the_call_of_a_module_and_not_within) {
  Loop loop;
  const auto layers = loop.layers(12);
  for (int i = 0; i < 10; ++i) {
    loop.call(1);
    loop.forward(layers, um_intern("layer"));
    loop.op("argmax", {read(layers[0], Loop::kBytes)});
  }
  CHECK(loop.edges == times(8, "call 1"));
}

TEST(a_training_without_modules_has_steps) {
  Loop loop(true);
  const auto layers = loop.layers(12);
  for (int i = 0; i < 10; ++i) {
    loop.forward(layers);
    loop.backward(layers);
    loop.update(layers);
  }
  CHECK(loop.edges == times(8, "mm"));
}

// First each of the four is taken for a step, then the update is seen to come less often.
TEST(accumulated_gradients_are_one_step) {
  Loop loop(true);
  const auto layers = loop.layers(12);
  for (int i = 0; i < 10; ++i) {
    for (int part = 0; part < 4; ++part) {
      loop.forward(layers);
      loop.backward(layers);
    }
    loop.update(layers);
  }
  CHECK(std::vector<std::string>(loop.edges.end() - 8, loop.edges.end()) == times(8, "sub_"));
  CHECK(loop.edges[loop.edges.size() - 9] == "mm");
}

// The forward of a cell that a training unrolls keeps more and more for its backward.
TEST(an_unrolled_cell_is_no_step_of_a_training) {
  Loop loop(true);
  const auto layers = loop.layers(12);
  for (int i = 0; i < 10; ++i) {
    std::vector<unsigned char*> kept;
    for (int time = 0; time < 5; ++time) {
      loop.forward(layers);
      kept.push_back(loop.lasting());
    }
    for (int time = 0; time < 5; ++time) loop.backward(layers);
    (void)kept;
    loop.update(layers);
  }
  CHECK(loop.edges == times(8, "sub_"));
}

TEST(two_networks_that_take_turns_are_one_step) {
  Loop loop(true);
  const auto one = loop.layers(12), other = loop.layers(12);
  for (int i = 0; i < 10; ++i) {
    loop.call(1);
    loop.forward(one, um_intern("layer"));
    loop.call(1);
    loop.forward(one, um_intern("layer"));
    loop.backward(one);
    loop.update(one);
    loop.call(2);
    loop.forward(other, um_intern("layer"));
    loop.call(1);
    loop.forward(one, um_intern("layer"));
    loop.backward(one);
    loop.backward(other);
    loop.update(other);
  }
  CHECK(loop.edges == times(8, "call 2"));
}

// Another loop, after one whose steps were found.
TEST(the_next_loop_is_found_too) {
  Loop loop;
  const auto layers = loop.layers(12), others = loop.layers(12);
  for (int i = 0; i < 10; ++i) loop.forward(layers);
  loop.edges.clear();
  for (int i = 0; i < 20; ++i) loop.forward(others);
  CHECK(loop.edges.size() >= 12);
  CHECK(loop.edges == times(loop.edges.size(), "mm"));
}

TEST(nothing_is_found_where_nothing_comes_again) {
  Loop loop;
  for (int i = 0; i < 200; ++i) loop.op("mm", {read(loop.lasting(), Loop::kBytes)});
  CHECK(loop.edges.empty());
}

// A loop over rows, a cell, updates by hand of something small: steps of so little would cost less than their edges.
TEST(what_takes_less_than_its_edge_is_no_step) {
  Loop loop;
  unsigned char* const row = loop.lasting();
  for (int i = 0; i < 1000; ++i) loop.op("add_", {write(row, Loop::kFewBytes)});
  CHECK(loop.edges.empty());
  const auto layers = loop.layers(12);
  for (int i = 0; i < 200; ++i) {
    loop.call(1);
    for (unsigned char* layer : layers)
      loop.op("mm", {read(layer, Loop::kFewBytes)}, UM_PHASE_FORWARD, um_intern("layer"));
  }
  CHECK(loop.edges.empty());
}

// Thirty batches of twelve small ops: the shuffling of each epoch is the edge.
TEST(an_epoch_of_many_small_batches_is_a_step) {
  Loop loop;
  unsigned char* const order = loop.lasting();
  const auto layers = loop.layers(12);
  for (int epoch = 0; epoch < 10; ++epoch) {
    loop.op("shuffle_", {write(order, Loop::kFewBytes)});
    for (int batch = 0; batch < 40; ++batch)
      for (unsigned char* layer : layers) loop.op("mm", {read(layer, Loop::kFewBytes)});
  }
  CHECK(loop.edges == times(8, "shuffle_"));
}

// An op that reads a row of a table is given all of the table: that alone makes no step of it.
TEST(reading_rows_of_a_large_table_is_no_step) {
  Loop loop;
  unsigned char* const table = loop.lasting(64 * kPage);
  unsigned char* const sum = loop.lasting();
  for (int i = 0; i < 300; ++i) {
    loop.op("index", {read(table, 64 * kPage)});
    loop.op("add_", {write(sum, Loop::kFewBytes)});
  }
  CHECK(loop.edges.empty());
}

// The place of steps that were found is the only op of a loop that follows.
TEST(a_place_that_comes_with_every_op_begins_no_steps_any_more) {
  Loop loop;
  const auto layers = loop.layers(12);
  for (int i = 0; i < 10; ++i) loop.forward(layers);
  CHECK(loop.edges == times(8, "mm"));
  for (int i = 0; i < 300; ++i) loop.op("mm", {read(layers[0], Loop::kFewBytes)});
  CHECK(loop.edges.size() <= 8 + 300 / 4);
}

TEST(nobody_looks_any_more_once_told_not_to) {
  Device device(16 * kPage);
  CHECK_OK(um_repetition_set(device, 1));
  CHECK_OK(um_repetition_set(device, 0));
  unsigned char* const weight = device.allocate(kPage);
  for (int i = 0; i < 20; ++i) device.op({read(weight, kPage)});
  CHECK_EQ(um_repetition_call(device, 1, 0), 0);
}

}  // namespace
