// A mover on a simulated GPU, in virtual time.
#pragma once

#include <memory>

#include "chunked_fixture.h"
#include "devices/simulated/device.h"
#include "devices/simulated/gpu.h"
#include "engine/mover.h"
#include "simulated_link.h"

namespace test {

using um::Movable;
using um::Mover;

struct Storages : um::Owners {
  void* remember(void*, uint64_t) noexcept override { return nullptr; }
  void forget(void*) noexcept override {}
  bool repoint(void*, uint64_t, uint64_t) noexcept override { return true; }
};

struct Rig {
  explicit Rig(uint64_t budget_chunks) {
    um_emulated_options options{};
    options.capacity_bytes = 256 * kMiB;
    backend = um::Backend::open_simulated_gpu(options);
    um::simulator::Space& space = um::simulator::space_of(backend.ordinal);
    gpu = std::make_unique<um::simulator::Gpu>(space, clock, um::simulator::CallCosts{});
    space.migrator.clock = &clock;
    space.gpu = gpu.get();
    current = std::make_unique<um::CurrentContext>(backend);
    fences = std::make_unique<um::Fences>(backend);
    memory = std::make_unique<um::MovableMemory>(nullptr, backend, *fences, blocks,
                                                 chunk_options(budget_chunks * kChunk, 1024 * kMiB));
    mover = std::make_unique<Mover>(backend, *memory, *fences, events, storages);
  }
  ~Rig() {
    give_back(&mover, &memory, *fences);
    fences.reset();
    current.reset();
    backend.close();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // A kernel that is given these.
  void op(std::initializer_list<Movable*> given, int64_t duration_ns, bool writes = false) {
    Mover::Uses uses;
    for (Movable* each : given) {
      ++each->pins;
      uses.push_back({each, writes});
    }
    CHECK(mover->acquire(uses, nullptr));
    kernel(duration_ns);
    for (Movable* each : given) --each->pins;
    mover->progress();
  }
  void kernel(int64_t duration_ns) {
    clock.begin_op(-1, um::simulator::FaultShape{});
    clock.end_op(duration_ns, false);
  }
  Movable* make(uint64_t bytes, int64_t duration_ns, int32_t storage = -1) {
    Movable* made = mover->make(bytes, nullptr, storage);
    made->owner = made;
    made->block->record.storage = storage;
    kernel(duration_ns);
    --made->pins;
    mover->progress();
    return made;
  }

  um::simulator::Clock clock{link(), um_pages_costs{}, 0};
  um::Backend backend;
  std::unique_ptr<um::simulator::Gpu> gpu;
  std::unique_ptr<um::CurrentContext> current;
  std::unique_ptr<um::Fences> fences;
  um::StablePool<um::Block> blocks;
  um::EventLog log;
  um::SwapEvents events{log};
  Storages storages;
  std::unique_ptr<um::MovableMemory> memory;
  std::unique_ptr<Mover> mover;
};

// What a script does now and then: it waits for the GPU.
inline void read_loss(const Rig& rig) { CHECK(rig.backend.call().ctx_synchronize() == um::driver::CUDA_SUCCESS); }

}  // namespace test
