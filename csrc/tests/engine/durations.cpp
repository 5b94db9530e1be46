// How long recorded ops ran, on a simulated GPU whose kernels take what the test says, of virtual time: the host runs
// ahead of them, and its own times, the machine's, are microseconds.
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "devices/simulated/device.h"
#include "devices/simulated/gpu.h"
#include "engine/device.h"
#include "engine/owners.h"
#include "engine_fixture.h"

namespace {

using um::driver::Function;

constexpr uint64_t kMiB = uint64_t{1} << 20, kChunk = 2 * kMiB;
constexpr um_placement kChunked{UM_MEMORY_CHUNKED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

um_link link() {
  um_link made{};
  for (const int direction : {0, 1}) {
    made.bytes_per_s[direction] = made.both_bytes_per_s[direction] = 1e9;  // a chunk takes two milliseconds
    made.engines[direction] = 1;
  }
  return made;
}

um::simulator::CallCosts costs(int64_t call_ns) {
  um::simulator::CallCosts made{};
  made[static_cast<size_t>(Function::mem_map)] = made[static_cast<size_t>(Function::mem_set_access)] = {call_ns, 0};
  made[static_cast<size_t>(Function::event_record)] = {call_ns / 20, 0};
  return made;
}

struct Kernel {
  std::vector<size_t> reads;  // blocks that are there before the step
  int64_t duration_ns;
};

// Eight blocks of a chunk, and a step that uses them; each of its ops makes another block, and frees it.
struct Gpu {
  Gpu(uint64_t budget_chunks, int64_t launch_ns, int64_t call_ns)
      : clock(link(), um_pages_costs{}, launch_ns),
        backend(open()),
        device(um_device::open_owned(backend, um::process_owners())) {
    um::simulator::Space& space = um::simulator::space_of(backend.ordinal);
    gpu = std::make_unique<um::simulator::Gpu>(space, clock, costs(call_ns));
    space.clock = &clock;
    space.gpu = gpu.get();
    um_owners_set(&test::Moving::owners());
    const um::CurrentContext current(backend);
    device->alive()->swapping.set({budget_chunks * kChunk, 0, kChunk, 0});
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(test::moving(device->allocate(kChunk, kChunked, nullptr)));
      run({{blocks.size() - 1}, 1000}, true);
    }
  }
  ~Gpu() {
    const um::CurrentContext current(backend);
    for (const test::Moving& block : blocks) um_device::free(block);
    device->close();
  }
  static um::Backend open() {
    um_emulated_options options{};
    options.capacity_bytes = 256 * kMiB;
    return um::Backend::open_simulated_gpu(options);
  }

  void run(const Kernel& kernel, bool write = false) {
    std::vector<um_access> accesses;
    for (const size_t block : kernel.reads) {
      accesses.push_back(write ? test::write(blocks[block], kChunk) : test::read(blocks[block], kChunk));
    }
    device->guard.begin_op(um_intern("kernel"), UM_PHASE_FORWARD, 0, false, accesses.data(),
                           static_cast<uint32_t>(accesses.size()));
    void* const made = device->allocate(kChunk, kChunked, nullptr);
    clock.begin_op(-1, um::simulator::FaultShape{});
    clock.end_op(kernel.duration_ns, false);
    const um_shown output{made, nullptr};
    device->guard.end_op(&output, 1);
    um_device::free(made);
  }
  void step(const std::vector<Kernel>& kernels) {
    device->alive()->guard.set_step(1);
    static_cast<void>(clock.take_tally());
    for (const Kernel& kernel : kernels) run(kernel);
  }
  std::vector<um_recorded_op> recorded() {
    std::vector<um_recorded_op> rows(um_recorded_ops(device.get(), nullptr, 0));
    um_recorded_ops(device.get(), rows.data(), rows.size());
    return rows;
  }
  std::vector<um_recorded_op> recording_of(const std::vector<Kernel>& kernels) {
    const um::CurrentContext current(backend);
    device->alive()->recording.set(true);
    step(kernels);
    device->alive()->recording.set(false);
    return recorded();
  }

  um::simulator::Clock clock;
  um::Backend backend;
  std::unique_ptr<um_device> device;
  std::unique_ptr<um::simulator::Gpu> gpu;
  std::vector<test::Moving> blocks;
};

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
