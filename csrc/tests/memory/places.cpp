// Allocations that move between chunks of the device and copies on the host: found where they lie, by whatever address.
#include "memory/places.h"

#include <random>

#include "chunked_fixture.h"
#include "memory/address_map.h"
#include "memory/host_copies.h"

using test::kChunk;
using test::kMiB;
using um::Block;

namespace {

// Two heaps, of blocks of any size.
struct Rig : test::Emulated {
  Rig()
      : here(backend, 64 * kMiB),
        there(backend, 64 * kMiB),
        device(nullptr, test::kChunked, here, blocks, 16 * kMiB),
        host(nullptr, test::kChunked, there, blocks, 16 * kMiB) {}
  ~Rig() {
    CHECK(device.trim());
    CHECK(host.trim());
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  um::HostSlabs here, there;
  um::ManagedHeap device, host;
};

Block* at(uint64_t address) {
  um::Arena* arena = um::address_map().find(address);
  return arena != nullptr ? arena->containing(address) : nullptr;
}

Block* parked(um::ManagedHeap& heap, uint64_t bytes) {
  Block* block = heap.allocate(bytes);
  um::park(block);
  return block;
}

}  // namespace

TEST(an_allocation_is_found_where_it_lies_and_nowhere_else) {
  Rig rig;
  Block* tensor = rig.device.allocate(5 * kMiB);
  tensor->record.serial = 7;
  Block* copy = parked(rig.host, 5 * kMiB);
  const uint64_t device = tensor->address, host = copy->address;
  CHECK(at(host + 3 * kMiB) == nullptr);
  um::exchange_places(tensor, copy);
  CHECK_EQ(tensor->address, host);
  CHECK(at(host) == tensor);
  CHECK(at(host + 5 * kMiB - 1) == tensor);
  CHECK(at(device) == nullptr);
  CHECK(at(device + 3 * kMiB) == nullptr);
  CHECK_EQ(tensor->record.serial, uint64_t{7});
  um::claim(copy);  // somebody else's now
  CHECK(at(device + 3 * kMiB) == copy);
  CHECK_EQ(copy->record.serial, uint64_t{0});
  rig.device.free(copy, false);
  rig.host.free(tensor, false);
}

TEST(blocks_that_move_at_random_stay_apart_and_are_found) {
  Rig rig;
  std::mt19937_64 chance(check::seed(5));
  struct Moving {
    Block* block;
    Block* other;  // where it does not lie
    uint64_t bytes;
    bool out;
  };
  std::vector<Moving> all;
  for (uint64_t round = 0; round < check::times(20000); ++round) {
    const size_t which = all.empty() ? 0 : chance() % all.size();
    const uint64_t kind = chance() % 4;
    if (kind == 0 && all.size() < 12) {
      const uint64_t bytes = 512 + chance() % (3 * kMiB);
      Moving made{rig.device.allocate(bytes), parked(rig.host, bytes), bytes, false};
      made.block->record.serial = round + 1;
      all.push_back(made);
    } else if (kind == 1 && !all.empty()) {
      Moving& gone = all[which];
      (gone.out ? rig.host : rig.device).free(gone.block, true);
      (gone.out ? rig.device : rig.host).free(gone.other, true);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (!all.empty()) {
      um::exchange_places(all[which].block, all[which].other);
      all[which].out = !all[which].out;
    }
    for (const Moving& each : all) {
      CHECK(at(each.block->address + chance() % each.bytes) == each.block);
      CHECK(at(each.other->address) == nullptr);
      CHECK(each.block->bytes >= each.bytes);
    }
    size_t seen = 0;
    for (const um::ManagedHeap* heap : {&rig.device, &rig.host}) {
      for (const um::Arena* arena : heap->arenas()) arena->each_block([&](const Block&) { ++seen; });
    }
    CHECK_EQ(seen, all.size());
  }
  for (const Moving& each : all) {
    (each.out ? rig.host : rig.device).free(each.block, true);
    (each.out ? rig.device : rig.host).free(each.other, true);
  }
}
