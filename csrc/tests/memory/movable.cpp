// Allocations that move between an emulated device and its host, with real bytes: contents are copied by two streams
// that take their time, and nobody waits for them but in streams.
#include <random>

#include "chunked_fixture.h"
#include "memory/address_map.h"
#include "memory/movable_memory.h"

using test::fill;
using test::filled;
using test::HeldFence;
using test::kChunk;
using test::kMiB;
using um::Block;
using um::Fences;
using um::MovableMemory;
using um::Residence;
using um::driver::CUstream;

namespace {

struct Rig : test::Emulated {
  explicit Rig(uint64_t budget_bytes, uint64_t host_bytes = 128 * kMiB, uint32_t delay_max_us = 0)
      : Emulated(delay_max_us),
        memory(std::make_unique<MovableMemory>(nullptr, backend, *fences, blocks,
                                               test::chunk_options(budget_bytes, host_bytes))) {}
  ~Rig() {
    if (!memory->give_back()) std::fprintf(stderr, "the driver kept memory\n"), std::abort();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  std::unique_ptr<MovableMemory> memory;
};

// A tensor and what it was filled with.
struct Tensor {
  Block* block = nullptr;
  Residence residence;
  uint64_t bytes = 0, seed = 0;
  Fences::Fence left = 0, came = 0;  // copies that were begun last

  unsigned char* data() const { return reinterpret_cast<unsigned char*>(block->address); }
};

Block* found_at(uint64_t address) {
  um::Arena* arena = um::address_map().find(address);
  return arena != nullptr ? arena->containing(address) : nullptr;
}

Tensor make(Rig& rig, uint64_t bytes, uint64_t seed) {
  Tensor tensor;
  tensor.block = rig.memory->make_on_device(bytes, nullptr, &tensor.residence);
  if (tensor.block == nullptr) return tensor;
  tensor.block->record.bytes = tensor.bytes = bytes;
  tensor.block->record.serial = tensor.seed = seed;
  fill(tensor.data(), bytes, seed);
  return tensor;
}

// Its memory on the device is handed on before the copy has ended.
bool send(Rig& rig, Tensor& tensor) {
  if (!rig.memory->add_copy(*tensor.block, &tensor.residence, rig.to_host)) return false;
  rig.fences->order(rig.to_host, tensor.came, um::Wait::departure_after_use);
  CHECK_EQ(rig.backend.call().memcpy_dtoh_async(reinterpret_cast<void*>(tensor.residence.copy->address),
                                                tensor.block->address, tensor.bytes, rig.to_host),
           um::driver::CUDA_SUCCESS);
  rig.fences->release(tensor.left);
  tensor.left = rig.fences->record(&rig.to_host, 1);
  rig.memory->to_host(tensor.block, &tensor.residence, tensor.left);
  return true;
}

bool bring(Rig& rig, Tensor& tensor) {
  if (!rig.memory->to_device(tensor.block, &tensor.residence, rig.to_device)) return false;
  rig.fences->order(rig.to_device, tensor.left, um::Wait::departure_after_use);
  CHECK_EQ(
      rig.backend.call().memcpy_htod_async(
          tensor.block->address, reinterpret_cast<void*>(tensor.residence.copy->address), tensor.bytes, rig.to_device),
      um::driver::CUDA_SUCCESS);
  rig.fences->release(tensor.came);
  tensor.came = rig.fences->record(&rig.to_device, 1);
  rig.memory->drop_copy(&tensor.residence, tensor.came);
  return true;
}

void end(Rig& rig, Tensor& tensor) {
  const CUstream both[] = {rig.to_device, rig.to_host};
  const HeldFence fence(*rig.fences, rig.fences->record(both, 2));
  rig.memory->free(tensor.block, &tensor.residence, fence);
  rig.fences->release(tensor.left);
  rig.fences->release(tensor.came);
}

// As an op would before it uses the tensor: in its stream, which is this thread.
void check_contents(Rig& rig, const Tensor& tensor) {
  rig.fences->wait(tensor.residence.range != nullptr ? tensor.came : tensor.left, um::Wait::op_after_arrival);
  CHECK(filled(tensor.data(), tensor.bytes, tensor.seed));
  CHECK(found_at(tensor.block->address + tensor.bytes / 2) == tensor.block);
}

}  // namespace

TEST(contents_survive_moves_through_any_chunks) {
  Rig rig(16 * kChunk, 128 * kMiB, 200);
  std::mt19937_64 chance(check::seed(11));
  std::vector<Tensor> all;
  uint64_t seed = 0;
  for (uint64_t round = 0; round < check::times(1200); ++round) {
    const size_t which = all.empty() ? 0 : chance() % all.size();
    const uint64_t kind = chance() % 5;
    if (kind == 0 || all.empty()) {
      Tensor made = make(rig, kMiB + chance() % (8 * kMiB), ++seed);
      if (made.block != nullptr) all.push_back(made);
    } else if (kind == 1 && all.size() > 6) {
      check_contents(rig, all[which]);
      end(rig, all[which]);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (all[which].residence.range != nullptr) {
      send(rig, all[which]);
    } else {
      bring(rig, all[which]);
    }
    if (chance() % 4 == 0 && !all.empty()) check_contents(rig, all[chance() % all.size()]);
  }
  for (Tensor& each : all) {
    check_contents(rig, each);
    end(rig, each);
  }
  CHECK_EQ(rig.memory->ranges.chunks.taken.now, uint64_t{0});
  CHECK_EQ(rig.memory->copies.in_use.now, uint64_t{0});
}

// A step that repeats asks the driver for nothing once its ranges are there.
TEST(a_step_that_repeats_maps_nothing) {
  Rig rig(8 * kChunk);
  std::vector<Tensor> all;
  for (uint64_t i = 0; i < 4; ++i) all.push_back(make(rig, 2 * kChunk, i + 1));
  uint64_t before = 0;
  for (int step = 0; step < 8; ++step) {
    if (step == 3) before = rig.calls("cuMemMap") + rig.calls("cuMemHostAlloc") + rig.calls("cuMemCreate");
    for (Tensor& each : all) CHECK(send(rig, each));
    for (Tensor& each : all) CHECK(bring(rig, each));
    for (Tensor& each : all) check_contents(rig, each);
  }
  CHECK_EQ(rig.calls("cuMemMap") + rig.calls("cuMemHostAlloc") + rig.calls("cuMemCreate"), before);
  CHECK_EQ(rig.calls("cuMemUnmap"), uint64_t{0});
  for (Tensor& each : all) end(rig, each);
}

TEST(what_is_made_on_the_host_comes_to_the_device_with_its_bytes) {
  Rig rig(8 * kChunk);
  Tensor tensor;
  tensor.block = rig.memory->make_on_host(3 * kChunk + 5, &tensor.residence);
  tensor.block->record.bytes = tensor.bytes = 3 * kChunk + 5;
  tensor.seed = 4;
  fill(tensor.data(), tensor.bytes, tensor.seed);
  check_contents(rig, tensor);
  const uint64_t host = tensor.block->address;
  CHECK(bring(rig, tensor));
  CHECK(found_at(host) == nullptr);
  check_contents(rig, tensor);
  end(rig, tensor);
}
