// How long recorded ops ran, on a simulated GPU whose kernels, and whose host, take what the test says, of virtual
// time.
#include <string>

#include "gpu_fixture.h"

using test::Gpu;
using test::Kernel;

namespace {

std::vector<Kernel> kernels() {
  std::vector<Kernel> made;
  for (size_t i = 0; i < 32; ++i) {
    made.push_back({{i * 3 % 8, (i * 5 + 1) % 8}, static_cast<int64_t>(500 + 137 * (i % 11)) * 1000});
  }
  return made;
}

void check_lengths(const std::vector<um_recorded_op>& ops, const std::vector<Kernel>& kernels, double within) {
  CHECK_EQ(ops.size(), kernels.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    CHECK_EQ(ops[i].device_time, 1u);
    const auto off_ns = static_cast<double>(ops[i].duration_ns - kernels[i].duration_ns);
    CHECK(std::abs(off_ns) <= within * static_cast<double>(kernels[i].duration_ns));
  }
}

}  // namespace

TEST(recorded_ops_last_as_long_as_their_kernels) {
  Gpu gpu(64, 7000, 0);  // launched, with nothing to wait for
  check_lengths(gpu.recording_of(kernels()), kernels(), 0.02);
}

TEST(a_step_that_stalls_is_recorded_as_one_that_does_not) {
  Gpu roomy(64, 0, 0), tight(4, 0, 0);
  const std::vector<um_recorded_op> calm = roomy.recording_of(kernels()), stalled = tight.recording_of(kernels());
  const um::simulator::Tally stood = tight.clock.take_tally(), none = roomy.clock.take_tally();
  CHECK(stood.wait_copy_ns + stood.host_late_ns > stood.compute_ns / 2);
  CHECK(none.wait_copy_ns + none.host_late_ns < none.compute_ns / 100);
  check_lengths(calm, kernels(), 0);
  check_lengths(stalled, kernels(), 0);
}

TEST(nor_do_launches_and_calls_within_an_op_count) {
  Gpu gpu(4, 7000, 36000);  // published costs of mapping; the device runs dry in each op
  check_lengths(gpu.recording_of(kernels()), kernels(), 0.02);
}

TEST(nor_does_the_time_in_which_the_device_waits_for_a_slow_host) {
  Gpu gpu(64, 60000, 0);
  std::vector<Kernel> all(32, {{1}, 10000});
  all.push_back({{0}, 5000000});
  all.resize(64, {{2}, 40000});  // launched long before it ends
  const std::vector<um_recorded_op> ops = gpu.recording_of(all);
  check_lengths(ops, all, 0.05);
}

TEST(what_was_recorded_is_true_while_the_recording_goes_on) {
  Gpu gpu(4, 0, 0);
  const um::CurrentContext current(gpu.backend);
  gpu.device->alive()->recording.set(true);
  gpu.step(kernels());
  check_lengths(gpu.recorded(), kernels(), 0);
  const std::vector<Kernel> more{{{0}, 3000000}};
  for (const Kernel& kernel : more) gpu.run(kernel);
  gpu.device->alive()->recording.set(false);
  CHECK_EQ(gpu.recorded().back().duration_ns, 3000000);
  CHECK_EQ(gpu.recorded().front().duration_ns, kernels().front().duration_ns);
}

TEST(another_recording_forgets_the_first_ones_ops) {
  Gpu gpu(64, 0, 0);
  const um::CurrentContext current(gpu.backend);
  gpu.device->alive()->recording.set(true);
  gpu.step({{{0}, 1000000}, {{1}, 1000000}});
  gpu.device->alive()->recording.set(true);
  gpu.step({{{0}, 5000000}});
  gpu.device->alive()->recording.set(false);
  check_lengths(gpu.recorded(), {{{0}, 5000000}}, 0);
}
