// The heap against a naive oracle: a map of what is allocated, kept by the test. The memory is real, so contents are
// checked too; the heap itself never reads or writes it.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "memory/address_map.h"
#include "memory/managed_heap.h"

namespace {

using um::ArenaSource;
using um::Block;
using um::kBlockBytes;
using um::kGranuleBytes;
using um::ManagedHeap;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class MappedSource : public ArenaSource {
 public:
  Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) override {
    if (fail_next) {
      fail_next = false;
      throw um::Error(UM_DRIVER_ERROR, "injected");
    }
    const uint64_t bytes = live_bytes + wanted_bytes <= limit_bytes ? wanted_bytes : least_bytes;
    if (live_bytes + bytes > limit_bytes) throw um::Error(UM_OUT_OF_DEVICE_MEMORY, "limit");
    void* base =
        mmap(nullptr, bytes + kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED);
    const uint64_t raw = reinterpret_cast<uint64_t>(base);
    const uint64_t address = (raw + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    bases[address] = base;
    live_bytes += bytes;
    given.push_back(bytes);
    return {address, bytes};
  }
  bool release(Range range) noexcept override {
    if (refuse_release) return false;
    munmap(bases[range.address], range.bytes + kBlockBytes);
    bases.erase(range.address);
    live_bytes -= range.bytes;
    return true;
  }

  std::map<uint64_t, void*> bases;
  std::vector<uint64_t> given;
  uint64_t live_bytes = 0, limit_bytes = ~uint64_t{0};
  bool fail_next = false, refuse_release = false;
};

struct Fixture {
  explicit Fixture(uint64_t first_arena_bytes = ManagedHeap::kFirstArenaBytes, uint64_t unit_bytes = kGranuleBytes)
      : heap(nullptr, {}, source, blocks, first_arena_bytes, unit_bytes) {}
  ~Fixture() {
    source.refuse_release = false;
    heap.trim();
  }
  um::StablePool<Block> blocks;
  MappedSource source;
  ManagedHeap heap;
};

// Through the address map, as the front does; but an arena that another heap has made of an address since is not read.
Block* found_at(const ManagedHeap& heap, uint64_t address) {
  const um::Arena* arena = um::address_map().find(address);
  const bool ours = std::find(heap.arenas().begin(), heap.arenas().end(), arena) != heap.arenas().end();
  return ours ? arena->containing(address) : nullptr;
}

// Walks every arena from its first block to its end: no gap, no overlap, no two free neighbours, links both ways.
void check_arenas(const ManagedHeap& heap, uint64_t* free_blocks, uint64_t* live_blocks) {
  *free_blocks = *live_blocks = 0;
  for (const um::Arena* arena : heap.arenas()) {
    uint64_t at = arena->address();
    const Block* previous = nullptr;
    for (const Block* block = arena->first; block != nullptr; block = block->next) {
      CHECK_EQ(block->address, at);
      CHECK(block->bytes > 0);
      CHECK_EQ(block->bytes % kGranuleBytes, uint64_t{0});
      CHECK(block->previous == previous);
      CHECK(block->arena == arena);
      CHECK(previous == nullptr || !(previous->free && block->free));
      ++*(block->free ? free_blocks : live_blocks);
      at = block->end();
      previous = block;
    }
    CHECK_EQ(at, arena->address() + arena->bytes());
  }
}

uint64_t random_size(std::mt19937_64& random) {
  switch (random() % 8) {
    case 0:
      return 1 + random() % (6 * kMiB);
    case 1:
      return kBlockBytes * (1 + random() % 3);
    case 2:
      return 1 + random() % (256 * 1024);
    default:
      return 1 + random() % 8192;
  }
}

// The first and the last bytes of a block, where a neighbour would show.
constexpr uint64_t kEdgeBytes = 256;
unsigned char pattern(uint64_t address) { return static_cast<unsigned char>(address / kGranuleBytes % 251); }

void fill(uint64_t address, uint64_t bytes) {
  const uint64_t edge = std::min(bytes, kEdgeBytes);
  std::memset(reinterpret_cast<void*>(address), pattern(address), edge);
  std::memset(reinterpret_cast<void*>(address + bytes - edge), pattern(address), edge);
}

bool filled(uint64_t address, uint64_t bytes) {
  const uint64_t edge = std::min(bytes, kEdgeBytes);
  const std::string expected(edge, static_cast<char>(pattern(address)));
  return std::memcmp(reinterpret_cast<void*>(address), expected.data(), edge) == 0 &&
         std::memcmp(reinterpret_cast<void*>(address + bytes - edge), expected.data(), edge) == 0;
}

void random_operations(uint64_t seed, uint64_t first_arena_bytes, int operations) {
  Fixture f(first_arena_bytes);
  std::mt19937_64 random(seed);
  std::map<uint64_t, std::pair<Block*, uint64_t>> live;  // address -> block, bytes as requested
  for (int i = 0; i < operations; ++i) {
    if (live.empty() || (random() % 100 < 55 && live.size() < 400)) {
      const uint64_t bytes = random_size(random);
      Block* block = f.heap.allocate(bytes);
      CHECK_EQ(block->address % (bytes >= kBlockBytes ? kBlockBytes : kGranuleBytes), uint64_t{0});
      CHECK(block->bytes >= bytes && block->bytes < bytes + kGranuleBytes);
      const auto above = live.lower_bound(block->address);
      CHECK(above == live.end() || block->end() <= above->first);
      CHECK(above == live.begin() || std::prev(above)->second.first->end() <= block->address);
      fill(block->address, bytes);
      live[block->address] = {block, bytes};
    } else {
      auto victim = live.begin();
      std::advance(victim, static_cast<long>(random() % live.size()));
      const uint64_t inside = victim->first + random() % victim->second.second;
      CHECK(found_at(f.heap, inside) == victim->second.first);
      CHECK(filled(victim->first, victim->second.second));
      f.heap.free(victim->second.first, false);
      CHECK(found_at(f.heap, inside) == nullptr);
      live.erase(victim);
    }
    if (i % 64 == 0) {
      uint64_t free_blocks, live_blocks;
      check_arenas(f.heap, &free_blocks, &live_blocks);
      CHECK_EQ(live_blocks, live.size());
    }
  }
  for (const auto& [address, entry] : live) {
    CHECK(filled(address, entry.second));
    f.heap.free(entry.first, false);
  }
  uint64_t free_blocks, live_blocks;
  check_arenas(f.heap, &free_blocks, &live_blocks);
  CHECK_EQ(live_blocks, uint64_t{0});
  CHECK_EQ(free_blocks, uint64_t{1});
  CHECK_EQ(f.heap.arenas().size(), size_t{1});
  CHECK(f.heap.trim());
  CHECK_EQ(f.source.live_bytes, uint64_t{0});
}

}  // namespace

TEST(random_operations_agree_with_the_oracle) {
  for (uint64_t seed = 1; seed <= 6; ++seed) random_operations(seed, ManagedHeap::kFirstArenaBytes, 3000);
}

TEST(random_operations_in_many_small_arenas) {
  for (uint64_t seed = 1; seed <= 6; ++seed) random_operations(seed, kBlockBytes, 3000);
}

TEST(interior_addresses_find_their_block_and_gaps_find_nothing) {
  Fixture f;
  Block* small = f.heap.allocate(700);
  Block* large = f.heap.allocate(9 * kMiB + 100);
  Block* tail = f.heap.allocate(kBlockBytes - 512);
  for (const Block* block : {small, large, tail}) {
    for (uint64_t at : {block->address, block->address + block->bytes / 2, block->end() - 1}) {
      CHECK(found_at(f.heap, at) == block);
    }
  }
  CHECK(found_at(f.heap, small->end()) == nullptr);  // the gap up to the next multiple of 2 MiB
  const uint64_t inside = large->address + 5 * kMiB;
  f.heap.free(large, false);
  CHECK(found_at(f.heap, inside) == nullptr);
  Block* again = f.heap.allocate(512);  // the large block's descriptor may serve this one now
  CHECK(found_at(f.heap, inside) == nullptr);
  for (Block* block : {small, tail, again}) f.heap.free(block, false);
  CHECK(found_at(f.heap, 0) == nullptr);
  CHECK(found_at(f.heap, ~uint64_t{0}) == nullptr);
}

TEST(arenas_double_up_to_a_gibibyte_and_large_requests_have_their_own) {
  Fixture f;
  std::vector<Block*> blocks;
  blocks.push_back(f.heap.allocate(1));
  blocks.push_back(f.heap.allocate(2500 * kMiB + 1));
  for (int i = 0; i < 45; ++i) blocks.push_back(f.heap.allocate(60 * kMiB));
  const std::vector<uint64_t> expected{64 * kMiB,  2502 * kMiB, 128 * kMiB, 256 * kMiB,
                                       512 * kMiB, 1024 * kMiB, 1024 * kMiB};
  CHECK(f.source.given == expected);
  CHECK_EQ(f.heap.reserved_bytes(), f.source.live_bytes);
  for (Block* block : blocks) f.heap.free(block, false);
  CHECK_EQ(f.heap.arenas().size(), size_t{1});
  CHECK_EQ(f.heap.reserved_bytes(), 2502 * kMiB);  // the largest one stays
}

TEST(the_same_requests_every_step_need_no_new_arena) {
  Fixture f;
  const uint64_t sizes[] = {3 * kMiB + 512, 100, 64 * kMiB, 5000, 17 * kMiB, 2 * kMiB, 40 * kMiB, 1 * kMiB, 30 * kMiB};
  Block* kept = f.heap.allocate(1000);
  uint64_t after_first = 0;
  for (int step = 0; step < 20; ++step) {
    std::vector<Block*> blocks;
    for (uint64_t bytes : sizes) blocks.push_back(f.heap.allocate(bytes));
    for (Block* block : blocks) f.heap.free(block, false);
    if (step == 0) after_first = f.source.given.size();
  }
  CHECK_EQ(f.source.given.size(), after_first);
  f.heap.free(kept, false);
}

TEST(a_large_block_leaves_its_remainder_to_small_ones) {
  Fixture f;
  Block* large = f.heap.allocate(64 * kMiB - 1024);
  Block* small = f.heap.allocate(1024);
  CHECK_EQ(small->address, large->end());
  CHECK_EQ(f.source.given.size(), size_t{1});
  f.heap.free(large, false);
  f.heap.free(small, false);
}

TEST(two_heaps_never_share_two_mebibytes) {
  um::StablePool<Block> blocks;
  MappedSource source;
  ManagedHeap heaps[] = {{nullptr, {}, source, blocks, kBlockBytes}, {nullptr, {}, source, blocks, kBlockBytes}};
  std::map<uint64_t, int> owner;
  std::mt19937_64 random(7);
  std::vector<std::pair<int, Block*>> live;
  for (int i = 0; i < 2000; ++i) {
    const int which = static_cast<int>(random() % 2);
    Block* block = heaps[which].allocate(random_size(random) / 4 + 1);
    live.push_back({which, block});
    for (uint64_t page = block->address / kBlockBytes; page <= (block->end() - 1) / kBlockBytes; ++page) {
      CHECK_EQ(owner.emplace(page, which).first->second, which);
    }
  }
  for (const auto& [which, block] : live) heaps[which].free(block, false);
  for (ManagedHeap& heap : heaps) CHECK(heap.trim());
}

TEST(blocks_of_a_larger_unit_are_whole_units_of_their_arena) {
  constexpr uint64_t kUnit = 6 * kMiB;
  Fixture f(10 * kUnit, kUnit);
  std::mt19937_64 random(13);
  std::vector<Block*> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() < 2 || (random() % 2 == 0 && live.size() < 60)) {
      const uint64_t bytes = 1 + random() % (i % 100 == 0 ? 15 * kUnit : 4 * kUnit);
      Block* block = f.heap.allocate(bytes);
      CHECK(block->bytes >= bytes && block->bytes < bytes + kUnit);
      CHECK_EQ(block->bytes % kUnit, uint64_t{0});
      CHECK_EQ((block->address - block->arena->address()) % kUnit, uint64_t{0});
      CHECK_EQ(block->arena->bytes() % kUnit, uint64_t{0});
      CHECK(found_at(f.heap, block->address + bytes - 1) == block);
      live.push_back(block);
    } else {
      std::swap(live[random() % live.size()], live.back());
      f.heap.free(live.back(), true);
      live.pop_back();
    }
  }
  uint64_t free_blocks, live_blocks;
  check_arenas(f.heap, &free_blocks, &live_blocks);
  CHECK_EQ(live_blocks, live.size());
  for (Block* block : live) f.heap.free(block, true);
  CHECK(f.heap.arenas().size() > 1);  // empty ones are kept until they are asked for
  CHECK(f.heap.trim());
  CHECK_EQ(f.source.live_bytes, uint64_t{0});
}

TEST(the_same_sequence_gives_the_same_offsets) {
  std::vector<uint64_t> offsets[2];
  for (auto& mine : offsets) {
    Fixture f;
    std::mt19937_64 random(11);
    std::vector<Block*> live;
    for (int i = 0; i < 2000; ++i) {
      if (random() % 3 != 0 || live.empty()) {
        live.push_back(f.heap.allocate(random_size(random) / 64 + 1));
        mine.push_back(live.back()->address - live.back()->arena->address());
      } else {
        std::swap(live[random() % live.size()], live.back());
        f.heap.free(live.back(), false);
        live.pop_back();
      }
    }
    for (Block* block : live) f.heap.free(block, false);
  }
  CHECK(offsets[0] == offsets[1]);
}

TEST(a_failing_source_changes_nothing) {
  Fixture f;
  f.source.fail_next = true;
  bool thrown = false;
  try {
    f.heap.allocate(100);
  } catch (const um::Error& error) {
    thrown = error.status() == UM_DRIVER_ERROR;
  }
  CHECK(thrown);
  CHECK_EQ(f.heap.reserved_bytes(), uint64_t{0});
  Block* block = f.heap.allocate(100);
  CHECK(found_at(f.heap, block->address) == block);
  f.source.refuse_release = true;
  f.heap.free(block, false);
  CHECK(!f.heap.trim());
  CHECK_EQ(f.heap.arenas().size(), size_t{1});
  block = f.heap.allocate(100);  // the arena that the driver would not take serves on
  CHECK_EQ(f.source.given.size(), size_t{1});
  CHECK(found_at(f.heap, block->address) == block);
  f.heap.free(block, false);
  f.source.refuse_release = false;
  CHECK(f.heap.trim());
  CHECK_EQ(f.source.live_bytes, uint64_t{0});
}

TEST(growth_is_exact_where_doubling_does_not_fit) {
  Fixture f;
  f.source.limit_bytes = 100 * kMiB;
  Block* first = f.heap.allocate(60 * kMiB);
  Block* second = f.heap.allocate(20 * kMiB);
  CHECK((f.source.given == std::vector<uint64_t>{64 * kMiB, 20 * kMiB}));
  f.heap.free(first, false);
  f.heap.free(second, false);
}

TEST(sizes_that_no_machine_has_are_refused) {
  Fixture f;
  for (uint64_t bytes : {~uint64_t{0}, ~uint64_t{0} - 511, uint64_t{1} << 62, uint64_t{1} << 42}) {
    bool thrown = false;
    try {
      f.heap.allocate(bytes);
    } catch (const um::Error&) {
      thrown = true;
    }
    CHECK(thrown);
  }
  CHECK_EQ(f.source.live_bytes, uint64_t{0});
}

// Arenas are recycled with their tables, and a closed device's blocks are gone.
TEST(an_arena_forgets_the_blocks_of_a_heap_that_is_gone) {
  {
    Fixture before(2 * kBlockBytes);
    before.heap.free(before.heap.allocate(2 * kBlockBytes), false);
  }
  Fixture f(2 * kBlockBytes);
  Block* block = f.heap.allocate(512);
  CHECK_EQ(f.heap.arenas().front()->bytes(), 2 * kBlockBytes);
  CHECK(found_at(f.heap, f.heap.arenas().front()->address() + kBlockBytes) == nullptr);
  f.heap.free(block, false);
}

// Each device has a lock of its own; the address map and the arenas' pool are what they share.
TEST(heaps_of_several_threads_share_the_address_map) {
  std::vector<std::thread> threads;
  std::atomic<bool> ok{true};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([seed, &ok] {
      try {
        random_operations(100 + seed, kBlockBytes, 500);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ok = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ok);
}
