// Tests the prediction of ops that will not run, because ops before them did not.
#include "engine/matching/skipped_ops.h"

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

// A step that skips `layer` and has reached the second op of the layer after it. That op was given the storage that was
// taken for the skipped layer's copy.
struct Skipped {
  explicit Skipped(int layer) : program(training.program()) {
    skipped.begin(program);
    const int32_t gone = training.forward[static_cast<size_t>(layer)];
    for (int32_t op = 0; op <= gone; ++op) skipped.note_seen(op);
    now = training.forward[static_cast<size_t>(layer) + 1] + 1;
    skipped.note_seen(now);
    std::vector<um::Block*> bound(training.trace.storage_bytes.size());
    const int32_t given = training.copies[static_cast<size_t>(layer) + 1];
    bound[static_cast<size_t>(given)] = &block;
    skipped.note_substitute(given, training.copies[static_cast<size_t>(layer)]);
    skipped.look_ahead(program, now, bound);
  }
  Training training;
  um::Program program;
  um::SkippedOps skipped;
  um::Block block;
  int32_t now = 0;
};

}  // namespace

TEST(later_ops_of_a_skipped_layer_are_skipped) {
  for (int layer = 0; layer + 1 < kLayers; ++layer) {
    const Skipped step(layer);
    const auto within = [&](const std::vector<int32_t>& first, int32_t op, int32_t count) {
      const int32_t from = first[static_cast<size_t>(layer)];
      return from <= op && op < from + count;
    };
    for (int32_t op = step.now + 1; op < step.program.op_count(); ++op) {
      // The sum that ends a layer's backward has two operands, and one of them was made.
      const bool gone = within(step.training.backward, op, 3) || within(step.training.optimizer, op, 3);
      CHECK_EQ(step.skipped.has(op) ? op : -1, gone ? op : -1);
    }
    CHECK_EQ(step.skipped.made_bytes(), 4 * kBytes);
  }
}

// Nothing can be predicted in a step that is unlike its program everywhere.
TEST(a_step_unlike_its_program_stops_looking_ahead) {
  Skipped step(1);
  const std::vector<um::Block*> bound(step.training.trace.storage_bytes.size());
  for (int look = 0; look < 80; ++look) step.skipped.look_ahead(step.program, step.now, bound);
  CHECK(step.skipped.ops().empty());
  CHECK_EQ(step.skipped.made_bytes(), 0);
}

TEST(no_op_is_skipped_where_all_ops_have_run) {
  Training training;
  const um::Program program = training.program();
  um::SkippedOps skipped;
  skipped.begin(program);
  for (int32_t op = 0; op < program.op_count(); ++op) {
    skipped.note_seen(op);
    skipped.look_ahead(program, op, std::vector<um::Block*>(training.trace.storage_bytes.size()));
    CHECK(skipped.ops().empty());
  }
}

// If backward ends early, the parameters that it has reached are still updated.
TEST(storages_that_were_made_are_used_after_a_gap) {
  Training training;
  const um::Program program = training.program();
  um::SkippedOps skipped;
  skipped.begin(program);
  for (int32_t op = 0; op < training.backward[1]; ++op) skipped.note_seen(op);  // backward ends before two layers
  const int32_t now = training.optimizer[2];
  skipped.note_seen(now);
  skipped.look_ahead(program, now, std::vector<um::Block*>(training.trace.storage_bytes.size()));
  CHECK_EQ(skipped.made_bytes(), 10 * kBytes);  // eight of backward, and a root of each moment
  for (int32_t op = now + 1; op < program.op_count(); ++op) CHECK(!skipped.has(op));
}
