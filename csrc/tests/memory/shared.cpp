// Chunks that small storages share: parts never meet, waste is bounded, and what is given back is the budget's again.
#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "chunked_fixture.h"
#include "memory/movable_memory.h"

using test::fill;
using test::filled;
using test::kChunk;
using um::ChunkRange;

namespace {

constexpr uint64_t kPart = uint64_t{64} << 10;

struct Rig : test::Emulated {
  explicit Rig(uint64_t budget_chunks) {
    memory = std::make_unique<um::MovableMemory>(nullptr, backend, *fences, blocks,
                                                 test::chunk_options(budget_chunks * kChunk, 16 * kChunk));
  }
  ~Rig() {
    CHECK(memory->give_back());
    memory.reset();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  uint64_t taken() const { return memory->ranges.chunks.taken.now; }

  std::unique_ptr<um::MovableMemory> memory;
};

unsigned char* data(const ChunkRange* range) { return reinterpret_cast<unsigned char*>(range->room->address); }

}  // namespace

TEST(parts_of_any_size_keep_their_bytes_whatever_comes_and_goes) {
  Rig rig(16);
  std::mt19937_64 random(check::seed(11));
  struct Held {
    ChunkRange* range;
    uint64_t bytes;
    unsigned char value;
  };
  std::vector<Held> held;
  for (int turn = 0; turn < 2000; ++turn) {
    const uint64_t bytes = 1 + random() % (kChunk / 2);
    ChunkRange* const range = random() % 5 < 3 ? rig.memory->shared.take(bytes, nullptr) : nullptr;
    if (range != nullptr) {
      held.push_back({range, bytes, static_cast<unsigned char>(1 + random() % 255)});
      fill(data(range), bytes, held.back().value);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      CHECK(filled(data(held.back().range), held.back().bytes, held.back().value));
      rig.memory->shared.give(held.back().range, 0);
      held.pop_back();
    }
    CHECK(rig.taken() <= 16);
  }
  for (const Held& each : held) {
    CHECK(filled(data(each.range), each.bytes, each.value));
    rig.memory->shared.give(each.range, 0);
  }
  CHECK_EQ(rig.taken(), uint64_t{0});
}

TEST(a_chunk_holds_as_many_parts_as_fit) {
  Rig rig(2);
  std::vector<ChunkRange*> parts;
  for (int i = 0; i < 32; ++i) parts.push_back(rig.memory->shared.take(kPart, nullptr));
  CHECK_EQ(rig.taken(), uint64_t{1});
  for (int i = 0; i < 2; ++i) parts.push_back(rig.memory->shared.take(kChunk / 2, nullptr));
  CHECK_EQ(rig.taken(), uint64_t{2});
  CHECK(!rig.memory->shared.has_room(kPart));
  CHECK(rig.memory->shared.take(kPart, nullptr) == nullptr);
  rig.memory->shared.give(parts[7], 0);
  parts[7] = rig.memory->shared.take(kPart - 1000, nullptr);  // what may never leave lies in none of theirs
  CHECK(parts[7] == nullptr);
  parts.erase(parts.begin() + 7);
  for (ChunkRange* each : parts) rig.memory->shared.give(each, 0);
  CHECK_EQ(rig.taken(), uint64_t{0});
}

// Each part has a range of its own over the chunk, which the next part there finds mapped.
TEST(parts_that_come_and_go_map_nothing) {
  Rig rig(1);
  uint64_t mapped = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<ChunkRange*> parts;
    for (int i = 0; i < 8; ++i) parts.push_back(rig.memory->shared.take(kChunk / 8, nullptr));
    for (ChunkRange* each : parts) rig.memory->shared.give(each, 0);
    if (round == 0) mapped = rig.calls("cuMemMap");
  }
  CHECK_EQ(rig.calls("cuMemMap"), mapped);
}

// In whichever order they come. Storage 0 comes twice, when others are there.
TEST(storages_come_back_to_where_they_were_next_to_the_same_others) {
  Rig rig(8);
  um::SharedChunks& shared = rig.memory->shared;
  std::vector<int32_t> order{1, 2, 3, 4, 5, 6};
  std::mt19937_64 random(check::seed(13));
  struct Seen {
    uint64_t part;
    std::vector<bool> beside;
    bool operator==(const Seen& other) const { return part == other.part && beside == other.beside; }
  };
  std::vector<Seen> before;
  for (int step = 0; step < 8; ++step) {
    rig.memory->layout.begin_step();
    shared.begin_step();
    std::vector<ChunkRange*> ranges(7);
    ChunkRange* const first = shared.take(kChunk / 4, nullptr, 0);
    const uint64_t first_part = first->part;
    shared.give(first, 0);
    for (const int32_t storage : order)
      ranges[static_cast<size_t>(storage)] = shared.take(kChunk / 4, nullptr, storage);
    ranges[0] = shared.take(kChunk / 4, nullptr, 0);
    std::vector<Seen> seen{{first_part, {}}};
    for (const ChunkRange* range : ranges) {
      seen.push_back({range->part, {}});
      for (const ChunkRange* other : ranges) seen.back().beside.push_back(range->shared == other->shared);
    }
    if (step > 0) CHECK(seen == before);
    before = seen;
    for (ChunkRange* range : ranges) shared.give(range, 0);
    std::shuffle(order.begin(), order.end(), random);
  }
  CHECK_EQ(rig.taken(), uint64_t{0});
}

// As in a longer step of the same program.
TEST(a_storage_that_has_grown_stays_within_its_chunk) {
  Rig rig(2);
  um::SharedChunks& shared = rig.memory->shared;
  const auto begin_step = [&] {
    rig.memory->layout.begin_step();
    shared.begin_step();
  };
  begin_step();
  ChunkRange* const first = shared.take(kChunk / 2, nullptr, 0);
  ChunkRange* const behind = shared.take(kChunk / 4, nullptr, 1);
  CHECK(behind->shared == first->shared);
  shared.give(first, 0);
  shared.give(behind, 0);
  begin_step();
  ChunkRange* const grown = shared.take(kChunk / 2 + kPart, nullptr, 1);
  const uint64_t end = grown->room->address + kChunk / 2 + kPart, chunk_end = grown->address + kChunk;
  shared.give(grown, 0);
  CHECK(end <= chunk_end);
}

// Where no more chunks may be had than are to stay free, and no chunk has room, a storage's chunk is the one that it
// had before: under another name it would not find what is laid out for it.
TEST(a_storage_comes_back_to_its_chunk_though_chunks_are_to_stay_free) {
  Rig rig(3);
  um::MovableMemory& memory = *rig.memory;
  const auto begin_step = [&] {
    memory.layout.begin_step();
    memory.shared.begin_step();
  };
  // Each step hands the three chunks on in a ring, so that no layout of one or two steps has enough of them.
  std::vector<ChunkRange*> held(4);
  const auto hand_on = [&](size_t from, size_t to) {
    if (held[from] != nullptr) memory.layout.give(std::exchange(held[from], nullptr), 0);
    held[to] = memory.layout.take(1, nullptr, static_cast<int32_t>(to));
    CHECK(held[to] != nullptr);
  };
  for (int step = 0; step < 8 && memory.layout.spare() == 0; ++step) {
    begin_step();
    hand_on(0, 2);
    hand_on(1, 0);
    hand_on(3, 1);
    hand_on(2, 3);
  }
  CHECK(memory.layout.spare() > 0);
  memory.layout.give(held[0], 0);

  int64_t before = 0;
  for (int step = 0; step < 3; ++step) {
    begin_step();
    CHECK(memory.ranges.chunks.obtainable() <= memory.layout.spare());
    ChunkRange* const range = memory.shared.take(kChunk / 2, nullptr, 4);
    if (step > 0) CHECK_EQ(range->shared->group, before);
    before = range->shared->group;
    memory.shared.give(range, 0);
  }
  memory.layout.give(held[1], 0);
  memory.layout.give(held[3], 0);
}

// The tightest packing that there is, against what first fit is said to take, for sizes that brute force can do.
TEST(what_parts_take_is_never_less_than_they_need) {
  Rig rig(1);
  std::mt19937_64 random(check::seed(12));
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<uint64_t> sizes;
    uint64_t units = 0;
    for (uint64_t count = random() % 12; count > 0; --count) {
      sizes.push_back(kPart * (1 + random() % 16));
      units += sizes.back() / kPart;
    }
    const uint64_t chunks = rig.memory->shared.chunks_for(sizes);
    CHECK(chunks * 32 >= units);
    CHECK(chunks <= units * 3 / 64 + 1);
  }
}
