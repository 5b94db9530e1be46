// The mover on an emulated device: random programs whose tensors are told where they lie keep every byte.
#include "engine/mover.h"

#include <random>

#include "chunked_fixture.h"

using test::fill;
using test::filled;
using test::kChunk;
using test::kMiB;
using um::Movable;
using um::Mover;

namespace {

// A tensor's storage: whoever moves the bytes changes its pointer.
struct Storage {
  uint64_t data = 0;
  bool there = true;
};

struct Storages : um::Owners {
  void* remember(void*, uint64_t) noexcept override { return nullptr; }
  void forget(void*) noexcept override {}
  bool repoint(void* owner, uint64_t from, uint64_t to) noexcept override {
    auto* const storage = static_cast<Storage*>(owner);
    if (!storage->there || storage->data != from) return false;
    storage->data = to;
    ++moves;
    return true;
  }
  uint64_t moves = 0;
};

struct Rig : test::Emulated {
  explicit Rig(uint64_t budget_chunks, uint64_t host_bytes = 128 * kMiB, uint32_t delay_max_us = 0)
      : Emulated(delay_max_us),
        memory(std::make_unique<um::MovableMemory>(nullptr, backend, *fences, blocks,
                                                   test::chunk_options(budget_chunks * kChunk, host_bytes))),
        mover(std::make_unique<Mover>(backend, *memory, *fences, events, storages)) {}
  ~Rig() { test::give_back(&mover, &memory, *fences); }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  um::EventLog log;
  um::SwapEvents events{log};
  Storages storages;
  std::unique_ptr<um::MovableMemory> memory;
  std::unique_ptr<Mover> mover;
};

struct Tensor {
  Movable* movable = nullptr;
  std::unique_ptr<Storage> storage = std::make_unique<Storage>();
  uint64_t bytes = 0, seed = 0;

  unsigned char* data() const { return reinterpret_cast<unsigned char*>(storage->data); }
};

Tensor make(Rig& rig, uint64_t bytes, uint64_t seed) {
  Tensor tensor;
  tensor.movable = rig.mover->make(bytes, nullptr);
  tensor.movable->owner = tensor.storage.get();
  tensor.storage->data = tensor.movable->block->address;
  tensor.bytes = bytes;
  tensor.seed = seed;
  fill(tensor.data(), bytes, seed);
  --tensor.movable->pins;
  return tensor;
}

// An op that reads it, and writes it anew.
void use(Rig& rig, Tensor& tensor, uint64_t seed = 0) {
  ++tensor.movable->pins;
  CHECK(rig.mover->acquire({{tensor.movable, seed != 0}}, nullptr));
  CHECK_EQ(tensor.storage->data, tensor.movable->block->address);
  CHECK(tensor.movable->residence.range != nullptr);
  CHECK(filled(tensor.data(), tensor.bytes, tensor.seed));
  if (seed != 0) fill(tensor.data(), tensor.bytes, tensor.seed = seed);
  --tensor.movable->pins;
}

void random_program(uint64_t seed, uint32_t delay_max_us) {
  Rig rig(10, 160 * kMiB, delay_max_us);
  std::mt19937_64 chance(seed);
  std::vector<Tensor> all;
  uint64_t contents = 0;
  for (uint64_t round = 0; round < check::times(1600); ++round) {
    const size_t which = all.empty() ? 0 : chance() % all.size();
    const uint64_t kind = chance() % 10;
    if (all.size() < 3 || (kind < 2 && all.size() < 14)) {
      all.push_back(make(rig, kMiB + chance() % (8 * kMiB), ++contents));
    } else if (kind == 2) {
      rig.mover->free(all[which].movable);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (kind == 3) {
      rig.mover->swap_out(all[which].movable);
    } else if (kind == 4) {
      rig.mover->swap_in(all[which].movable);
    } else if (kind == 5) {
      rig.mover->evict_first(all[which].movable);
    } else if (kind == 6) {  // raw accesses, where it lies; on the host they need nobody
      const bool write = chance() % 2 == 0;
      rig.mover->transfers.serve(all[which].movable, write);
      CHECK(filled(all[which].data(), all[which].bytes, all[which].seed));
      if (write) fill(all[which].data(), all[which].bytes, all[which].seed = ++contents);
    } else {
      use(rig, all[which], kind == 7 ? ++contents : 0);
    }
    rig.mover->progress();
    CHECK(rig.memory->ranges.chunks.taken.now <= 10);
  }
  CHECK(rig.storages.moves > 0);
  for (Tensor& each : all) {
    use(rig, each);
    rig.mover->free(each.movable);
  }
}

// All of it leaves after forward and comes for backward. How many layouts there were.
uint64_t repeated_steps(int count, uint32_t delay_max_us) {
  Rig rig(10, 160 * kMiB, delay_max_us);
  uint64_t contents = 0;
  std::vector<Tensor> layers;
  for (uint64_t i = 0; i < 6; ++i) layers.push_back(make(rig, (1 + i % 3) * kChunk - 100, ++contents));
  for (int step = 0; step < count; ++step) {
    rig.memory->layout.begin_step();
    std::vector<Tensor> activations;
    for (size_t i = 0; i < layers.size(); ++i) {
      activations.push_back(make(rig, (1 + i * 2 % 3) * kChunk, ++contents));
      use(rig, layers[i]);
      for (Tensor* each : {&layers[i], &activations[i]}) rig.mover->swap_out(each->movable);
    }
    for (size_t i = layers.size(); i-- > 0;) {
      if (i > 0) rig.mover->swap_in(activations[i - 1].movable);
      use(rig, activations[i]);
      use(rig, layers[i], ++contents);
      rig.mover->free(activations[i].movable);
    }
  }
  for (Tensor& each : layers) rig.mover->free(each.movable);
  return rig.memory->layout.layouts();
}

}  // namespace

TEST(steps_that_repeat_keep_every_byte) {
  CHECK(repeated_steps(24, 0) > 0);
  static_cast<void>(repeated_steps(12, 300));
}

TEST(random_programs_keep_every_byte) {
  for (uint64_t seed = 1; seed <= 6; ++seed) random_program(check::seed(seed), 0);
}

TEST(random_programs_keep_every_byte_while_copies_take_their_time) {
  for (uint64_t seed = 1; seed <= 3; ++seed) random_program(check::seed(seed), 300);
}

TEST(what_nobody_owns_stays) {
  Rig rig(4);
  Tensor first = make(rig, 2 * kChunk, 1), second = make(rig, 2 * kChunk, 2);
  first.movable->owner = nullptr;
  Tensor third = make(rig, 2 * kChunk, 3);
  CHECK(first.movable->residence.range != nullptr);
  CHECK(second.movable->residence.range == nullptr);
  for (Tensor* each : {&first, &second, &third}) use(rig, *each);
  for (Tensor* each : {&first, &second, &third}) rig.mover->free(each->movable);
}

TEST(a_storage_that_shows_another_address_by_now_stays) {
  Rig rig(4);
  Tensor first = make(rig, 2 * kChunk, 1), second = make(rig, 2 * kChunk, 2);
  first.storage->there = false;
  Tensor third = make(rig, 2 * kChunk, 3);
  CHECK(first.movable->residence.range != nullptr);
  CHECK(second.movable->residence.range == nullptr);
  for (Tensor* each : {&first, &second, &third}) rig.mover->free(each->movable);
}

TEST(what_leaves_can_be_used_where_it_is_until_its_memory_is_taken) {
  Rig rig(4);
  Tensor first = make(rig, 2 * kChunk, 1);
  const uint64_t address = first.storage->data;
  CHECK(rig.mover->swap_out(first.movable));
  CHECK_EQ(first.storage->data, address);
  CHECK(filled(first.data(), first.bytes, 1));
  Tensor second = make(rig, 2 * kChunk, 2);
  CHECK_EQ(first.storage->data, address);  // there was room
  Tensor third = make(rig, 2 * kChunk, 3);
  CHECK(first.storage->data != address);
  CHECK(filled(first.data(), first.bytes, 1));
  for (Tensor* each : {&first, &second, &third}) rig.mover->free(each->movable);
}
