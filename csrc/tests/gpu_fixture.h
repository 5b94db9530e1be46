// A device that cannot be told from a GPU, in virtual time, and ops on chunks of it.
#pragma once

#include <memory>
#include <vector>

#include "check.h"
#include "devices/simulated/device.h"
#include "devices/simulated/gpu.h"
#include "engine/device.h"
#include "engine/owners.h"
#include "engine_fixture.h"

namespace test {

using um::driver::Function;

inline constexpr uint64_t kChunk = 2 * kMiB;
inline constexpr um_placement kChunked{UM_MEMORY_CHUNKED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

inline um_link link() {
  um_link made{};
  for (const int direction : {0, 1}) {
    made.bytes_per_s[direction] = made.both_bytes_per_s[direction] = 1e9;  // a chunk takes two milliseconds
    made.engines[direction] = 1;
  }
  return made;
}

inline um::simulator::CallCosts costs(int64_t call_ns) {
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
    space.migrator.clock = &clock;
    space.gpu = gpu.get();
    um_owners_set(&Moving::owners());
    const um::CurrentContext current(backend);
    device->alive()->swapping.set({budget_chunks * kChunk, 0, kChunk, 0, 0});
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(moving(device->allocate(kChunk, kChunked, nullptr)));
      run({{blocks.size() - 1}, 1000}, true);
    }
  }
  ~Gpu() {
    const um::CurrentContext current(backend);
    for (const Moving& block : blocks) um_device::free(block);
    device->close();
  }
  static um::Backend open() {
    static const um::driver::DeviceHooks in_virtual_time = [] {
      um::driver::DeviceHooks hooks = um::driver::kSilentHooks;
      hooks.now_ns = [](int32_t ordinal) {
        const um::simulator::Gpu* const opened = um::simulator::space_of(ordinal).gpu;
        return opened != nullptr ? opened->clock.host_ns() : 0;
      };
      return hooks;
    }();
    um_emulated_options options{};
    options.capacity_bytes = 256 * kMiB;
    um::Backend opened = um::Backend::open_simulated_gpu(options);
    opened.hooks = &in_virtual_time;
    return opened;
  }

  void run(const Kernel& kernel, bool write = false) {
    std::vector<um_access> accesses;
    for (const size_t block : kernel.reads) {
      accesses.push_back(write ? test::write(blocks[block], kChunk) : test::read(blocks[block], kChunk));
    }
    device->begin_op(um_intern("kernel"), UM_PHASE_FORWARD, 0, false, accesses.data(),
                     static_cast<uint32_t>(accesses.size()));
    void* const made = device->allocate(kChunk, kChunked, nullptr);
    clock.begin_op(-1, um::simulator::FaultShape{});
    clock.end_op(kernel.duration_ns, false);
    const um_shown output{made, nullptr};
    device->end_op(&output, 1);
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
  std::vector<Moving> blocks;
};

}  // namespace test
