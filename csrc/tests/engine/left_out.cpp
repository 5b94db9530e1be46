// Which ops of a program will not come, where others of it have not.
#include "engine/left_out.h"

#include <numeric>

#include "swapping_fixture.h"

namespace {

constexpr int kLayers = 4;
constexpr int64_t kBytes = 1 << 20, kNs = 1000;

// A training step: each layer copies what it is given, multiplies it by its weight and adds that to what it was given;
// the optimizer has a moment of each weight.
struct Training {
  fixture::Trace trace;
  std::vector<int32_t> weights, moments, copies, products, forward, backward, optimizer;  // the last three: first ops
  std::vector<uint32_t> names;
  std::vector<uint8_t> states;
  std::vector<uint64_t> serials;

  Training() {
    for (int i = 0; i < kLayers; ++i)
      weights.push_back(trace.allocate(kBytes)), moments.push_back(trace.allocate(kBytes));
    states.assign(trace.storage_bytes.size(), 1);
    const int32_t input = make("input", {});
    int32_t hidden = make("embed", {input});
    for (int layer = 0; layer < kLayers; ++layer) {
      forward.push_back(ops());
      copies.push_back(make("copy", {hidden}));
      products.push_back(make("multiply", {copies.back(), weight(layer)}));
      const int32_t act = make("relu", {products.back()});
      hidden = make("add", {hidden, act});
    }
    backward.resize(kLayers);
    std::vector<int32_t> gradients(kLayers);
    int32_t gradient = make("loss", {hidden});
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      backward[static_cast<size_t>(layer)] = ops();
      const int32_t inner = make("relu_backward", {gradient, products[static_cast<size_t>(layer)]});
      gradients[static_cast<size_t>(layer)] = make("of_weight", {inner, copies[static_cast<size_t>(layer)]});
      gradient = make("add", {gradient, make("of_input", {inner, weight(layer)})});
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      optimizer.push_back(ops());
      const int32_t moment = moments[static_cast<size_t>(layer)];
      use("lerp", {moment, gradients[static_cast<size_t>(layer)]});
      const int32_t root = make("sqrt", {moment});
      use("divide", {weight(layer), root});
    }
    optimizer.push_back(ops());
    states.resize(trace.storage_bytes.size());
    serials.resize(trace.storage_bytes.size());
    std::iota(serials.begin(), serials.begin() + 2 * kLayers, 1);
  }
  int32_t weight(int layer) const { return weights[static_cast<size_t>(layer)]; }
  int32_t ops() const { return static_cast<int32_t>(trace.op_duration_ns.size()); }
  int32_t make(const char* name, const std::vector<int32_t>& given) {
    names.push_back(um_intern(name));
    return trace.make(kNs, kBytes, given);
  }
  void use(const char* name, const std::vector<int32_t>& given) {
    names.push_back(um_intern(name));
    trace.use(kNs, given, fixture::kRW);
  }
  um::Program program() const {
    const um_trace columns = trace.columns();
    um_program made{};
    made.trace = &columns;
    made.op_name = names.data();
    made.first_serials = serials.data();
    made.state = states.data();
    return um::Program(made, 1, 0);
  }
};

// The step has come to the second op of the layer after one that was left out: it was given the copy that was taken for
// that layer's.
struct Skipped {
  explicit Skipped(int layer) : program(training.program()) {
    left_out.begin(program);
    const int32_t gone = training.forward[static_cast<size_t>(layer)];
    for (int32_t op = 0; op <= gone; ++op) left_out.came(op);
    now = training.forward[static_cast<size_t>(layer) + 1] + 1;
    left_out.came(now);
    std::vector<um::Block*> bound(training.trace.storage_bytes.size());
    const int32_t given = training.copies[static_cast<size_t>(layer) + 1];
    bound[static_cast<size_t>(given)] = &block;
    left_out.note_place(given, training.copies[static_cast<size_t>(layer)]);
    left_out.look_ahead(program, now, bound);
  }
  Training training;
  um::Program program;
  um::LeftOut left_out;
  um::Block block;
  int32_t now = 0;
};

}  // namespace

TEST(what_a_layer_that_was_left_out_would_have_done_later_will_not_come) {
  for (int layer = 0; layer + 1 < kLayers; ++layer) {
    const Skipped step(layer);
    const auto within = [&](const std::vector<int32_t>& first, int32_t op, int32_t count) {
      const int32_t from = first[static_cast<size_t>(layer)];
      return from <= op && op < from + count;
    };
    for (int32_t op = step.now + 1; op < step.program.op_count(); ++op) {
      // The sum that ends a layer's backward is one of two things, and the other one is there.
      const bool gone = within(step.training.backward, op, 3) || within(step.training.optimizer, op, 3);
      CHECK_EQ(step.left_out.has(op) ? op : -1, gone ? op : -1);
    }
    CHECK_EQ(step.left_out.made_bytes(), 4 * kBytes);
  }
}

// A step that is nowhere like its program tells nothing.
TEST(what_never_comes_as_foreseen_is_not_looked_for_for_ever) {
  Skipped step(1);
  const std::vector<um::Block*> bound(step.training.trace.storage_bytes.size());
  for (int look = 0; look < 80; ++look) step.left_out.look_ahead(step.program, step.now, bound);
  CHECK(step.left_out.ops().empty());
  CHECK_EQ(step.left_out.made_bytes(), 0);
}

TEST(where_all_have_come_none_is_left_out) {
  Training training;
  const um::Program program = training.program();
  um::LeftOut left_out;
  left_out.begin(program);
  for (int32_t op = 0; op < program.op_count(); ++op) {
    left_out.came(op);
    left_out.look_ahead(program, op, std::vector<um::Block*>(training.trace.storage_bytes.size()));
    CHECK(left_out.ops().empty());
  }
}

// A backward that ends early leaves the parameters that it has reached an update.
TEST(what_has_been_made_is_used_by_what_comes_after_a_gap) {
  Training training;
  const um::Program program = training.program();
  um::LeftOut left_out;
  left_out.begin(program);
  for (int32_t op = 0; op < training.backward[1]; ++op) left_out.came(op);  // of two layers it does not come
  const int32_t now = training.optimizer[2];
  left_out.came(now);
  left_out.look_ahead(program, now, std::vector<um::Block*>(training.trace.storage_bytes.size()));
  CHECK_EQ(left_out.made_bytes(), 10 * kBytes);  // eight of backward, and a root of each moment
  for (int32_t op = now + 1; op < program.op_count(); ++op) CHECK(!left_out.has(op));
}
