// Address ranges over chunks of an emulated device: real bytes, seen through every range of a chunk, and counted driver
// calls.
#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "chunked_fixture.h"
#include "held_helper.h"
#include "memory/chunk_ranges.h"

using test::fill;
using test::filled;
using test::kChunk;
using test::kMiB;
using test::status_of;
using um::ChunkRange;
using um::ChunkRanges;
using um::Fences;

namespace {

class Addresses : public um::ArenaSource {
 public:
  explicit Addresses(const um::Backend& backend) : backend_(backend) {}
  Range acquire(uint64_t, uint64_t wanted_bytes) override {
    um::driver::CUdeviceptr address = 0;
    backend_.check(backend_.call().mem_address_reserve(&address, wanted_bytes, um::kBlockBytes, 0, 0), "reserving");
    return {address, wanted_bytes};
  }
  bool release(Range range) noexcept override {
    return backend_.call().mem_address_free(range.address, range.bytes) == um::driver::CUDA_SUCCESS;
  }

 private:
  const um::Backend& backend_;
};

struct Rig : test::Emulated {
  explicit Rig(uint64_t budget_chunks)
      : addresses(backend),
        rooms(nullptr, test::kChunked, addresses, blocks, 32 * kChunk, kChunk),
        ranges(std::make_unique<ChunkRanges>(backend, *fences, rooms, kChunk, budget_chunks)) {}
  ~Rig() {
    backend.hooks->fail(backend.ordinal, nullptr, 0);
    ranges.reset();
    CHECK(rooms.trim());
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  Addresses addresses;
  um::ManagedHeap rooms;
  std::unique_ptr<ChunkRanges> ranges;
};

unsigned char* data(const ChunkRange* range) { return reinterpret_cast<unsigned char*>(range->address); }

}  // namespace

TEST(a_range_that_was_given_back_is_taken_again_without_a_mapping) {
  Rig rig(8);
  ChunkRange* first = rig.ranges->take(3, nullptr);
  ChunkRange* second = rig.ranges->take(3, nullptr);
  CHECK(first != second);
  const uint64_t mappings = rig.calls("cuMemMap");
  CHECK_EQ(mappings, uint64_t{6});
  for (int i = 0; i < 5; ++i) {
    rig.ranges->give(first, 0);
    rig.ranges->give(second, 0);
    CHECK(rig.ranges->take(3, nullptr) == first);  // given back longest ago
    CHECK(rig.ranges->take(3, nullptr) == second);
  }
  CHECK_EQ(rig.calls("cuMemMap"), mappings);
  CHECK_EQ(rig.calls("cuMemUnmap"), uint64_t{0});
  rig.ranges->give(first, 0);
  rig.ranges->give(second, 0);
}

TEST(in_which_order_several_are_given_back_at_once_decides_nothing) {
  std::vector<size_t> order{0, 1, 2, 3};
  do {
    Rig rig(4);
    std::vector<ChunkRange*> single;
    for (int i = 0; i < 4; ++i) single.push_back(rig.ranges->take(1, nullptr));
    for (const size_t i : order) rig.ranges->give(single[i], 0);
    ChunkRange* const wide = rig.ranges->take_oldest(2, nullptr);
    CHECK(wide->chunks == (std::vector<um::Chunk*>{single[0]->chunks[0], single[1]->chunks[0]}));
    CHECK(rig.ranges->take(1, nullptr) == single[2]);
    CHECK(rig.ranges->take(1, nullptr) == single[3]);
    for (ChunkRange* each : {wide, single[3], single[2]}) {
      rig.ranges->give(each, 0);
      rig.ranges->end_moment();  // something happens between them
    }
    CHECK(rig.ranges->take(2, nullptr) == wide);
    CHECK(rig.ranges->take(1, nullptr) == single[3]);
    CHECK(rig.ranges->take(1, nullptr) == single[2]);
    for (ChunkRange* each : {wide, single[2], single[3]}) rig.ranges->give(each, 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(any_free_chunks_back_a_range_of_any_size) {
  Rig rig(8);
  std::vector<ChunkRange*> single;
  for (int i = 0; i < 8; ++i) single.push_back(rig.ranges->take(1, nullptr));
  CHECK(rig.ranges->take(1, nullptr) == nullptr);
  for (int i = 0; i < 8; i += 2) rig.ranges->give(single[static_cast<size_t>(i)], 0);
  CHECK_EQ(rig.ranges->chunks.obtainable(), uint64_t{4});
  ChunkRange* wide = rig.ranges->take(4, nullptr);  // over every second chunk
  CHECK(wide != nullptr);
  CHECK_EQ(rig.ranges->chunks.pool.created(), uint64_t{8});
  CHECK_EQ(rig.calls("cuMemUnmap"), uint64_t{0});
  CHECK(!rig.ranges->take(single[0], nullptr));  // its chunk is under the wide one
  for (int i = 1; i < 8; i += 2) rig.ranges->give(single[static_cast<size_t>(i)], 0);
  rig.ranges->give(wide, 0);
  CHECK(rig.ranges->take(single[0], nullptr));
  rig.ranges->give(single[0], 0);
}

TEST(a_chunk_shows_the_same_bytes_in_all_of_its_ranges) {
  Rig rig(4);
  ChunkRange* forth = rig.ranges->map({0, 1, 2});
  ChunkRange* back = rig.ranges->map({2, 1, 0});
  CHECK(forth != back);
  CHECK(rig.ranges->map({0, 1, 2}) == forth);
  CHECK_EQ(rig.ranges->mapping.mapped(), uint64_t{6});
  CHECK(rig.ranges->take(forth, nullptr));
  for (uint64_t chunk = 0; chunk < 3; ++chunk) fill(data(forth) + chunk * kChunk, kChunk, chunk);
  for (uint64_t chunk = 0; chunk < 3; ++chunk) CHECK(filled(data(back) + (2 - chunk) * kChunk, kChunk, chunk));
  CHECK(!rig.ranges->take(back, nullptr));
  rig.ranges->give(forth, 0);
  CHECK(rig.ranges->take(back, nullptr));
  rig.ranges->give(back, 0);
  CHECK(rig.ranges->map({0, 4}) == nullptr);  // there are four
}

TEST(what_is_held_keeps_its_bytes_whatever_comes_and_goes) {
  constexpr uint64_t kBudget = 12;
  Rig rig(kBudget);
  std::mt19937_64 chance(check::seed(7));
  std::vector<std::pair<ChunkRange*, uint64_t>> held;  // and what it was filled with
  uint64_t taken = 0, seed = 0;
  for (uint64_t round = 0; round < check::times(4000); ++round) {
    const uint64_t chunks = 1 + chance() % 5;
    ChunkRange* range = chance() % 2 == 0 ? rig.ranges->take(chunks, nullptr) : nullptr;
    if (range != nullptr) {
      CHECK_EQ(range->chunks.size(), chunks);
      taken += chunks;
      held.emplace_back(range, ++seed);
      fill(data(range), chunks * kChunk, seed);
    } else if (!held.empty()) {
      const size_t at = chance() % held.size();
      CHECK(filled(data(held[at].first), held[at].first->chunks.size() * kChunk, held[at].second));
      taken -= held[at].first->chunks.size();
      rig.ranges->give(held[at].first, 0);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    CHECK_EQ(rig.ranges->chunks.obtainable(), kBudget - taken);
    std::set<um::Chunk*> seen;
    for (const auto& each : held) {
      for (um::Chunk* chunk : each.first->chunks) CHECK(seen.insert(chunk).second);
    }
  }
  CHECK(rig.ranges->mapping.mapped() <= 16 * kBudget + 5);
  for (const auto& each : held) {
    CHECK(filled(data(each.first), each.first->chunks.size() * kChunk, each.second));
    rig.ranges->give(each.first, 0);
  }
}

TEST(what_is_beyond_a_smaller_budget_goes_back_when_it_is_free) {
  Rig rig(8);
  ChunkRange* wide = rig.ranges->take(5, nullptr);
  ChunkRange* other = rig.ranges->take(3, nullptr);
  rig.ranges->give(other, 0);
  rig.ranges->set_budget(4);
  CHECK_EQ(rig.ranges->chunks.pool.created(), uint64_t{5});
  CHECK_EQ(rig.ranges->ranges(), uint64_t{1});
  CHECK_EQ(rig.ranges->chunks.obtainable(), uint64_t{0});
  rig.ranges->give(wide, 0);
  CHECK_EQ(rig.ranges->chunks.pool.created(), uint64_t{4});
  CHECK_EQ(rig.ranges->ranges(), uint64_t{0});
  CHECK(rig.ranges->give_back());
  CHECK_EQ(rig.ranges->chunks.pool.created(), uint64_t{0});
  wide = rig.ranges->take(4, nullptr);
  CHECK(wide != nullptr);
  rig.ranges->give(wide, 0);
}

TEST(a_driver_that_fails_at_any_call_leaves_nothing_behind) {
  for (const char* function : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    for (uint64_t nth = 1; nth <= 3; ++nth) {
      Rig rig(6);
      ChunkRange* before = rig.ranges->take(2, nullptr);
      fill(data(before), 2 * kChunk, 9);
      const uint64_t mapped = rig.ranges->mapping.mapped();
      CHECK(rig.backend.hooks->fail(rig.backend.ordinal, function, nth));
      const um_status status = status_of([&] {
        if (ChunkRange* range = rig.ranges->take(3, nullptr)) rig.ranges->give(range, 0);
      });
      rig.backend.hooks->fail(rig.backend.ordinal, nullptr, 0);
      if (status != UM_OK) CHECK_EQ(rig.ranges->mapping.mapped(), mapped);
      CHECK(filled(data(before), 2 * kChunk, 9));
      ChunkRange* after = rig.ranges->take(4, nullptr);
      CHECK(after != nullptr);
      rig.ranges->give(after, 0);
      rig.ranges->give(before, 0);
    }
  }
}

TEST(a_helper_maps_ahead) {
  Rig rig(4);
  rig.begin_helper();
  ChunkRange* forth = rig.ranges->map({0, 1});
  ChunkRange* back = rig.ranges->map({1, 0});
  rig.backend.helper->finish();
  CHECK_EQ(rig.calls("cuMemMap"), uint64_t{4});
  CHECK(rig.ranges->take(forth, nullptr));
  fill(data(forth), 2 * kChunk, 5);
  rig.ranges->give(forth, 0);
  CHECK(rig.ranges->take(back, nullptr));
  CHECK(std::memcmp(data(back), data(forth) + kChunk, kChunk) == 0);
  rig.ranges->give(back, 0);
  CHECK_EQ(rig.calls("cuMemMap"), uint64_t{4});
}

TEST(what_the_helper_has_not_begun_is_mapped_by_whoever_wants_it) {
  Rig rig(4);
  rig.begin_helper();
  test::Latch latch;
  rig.backend.helper->ask([&] { latch.wait(); });
  ChunkRange* wanted = rig.ranges->map({0, 1});
  ChunkRange* other = rig.ranges->map({2, 3});
  CHECK_EQ(rig.calls("cuMemMap"), uint64_t{0});
  CHECK(rig.ranges->take(2, nullptr, {rig.ranges->chunks.at(0), rig.ranges->chunks.at(1)}) == wanted);
  CHECK_EQ(rig.calls("cuMemMap"), uint64_t{2});
  fill(data(wanted), 2 * kChunk, 5);
  ChunkRange* one = rig.ranges->take(1, nullptr);  // nobody waits for what may be mapped still
  CHECK(one != nullptr && one != other);
  rig.ranges->give(one, 0);
  latch.open();
  rig.backend.helper->finish();
  CHECK_EQ(rig.calls("cuMemMap"), uint64_t{5});  // the wanted range is not mapped twice
  CHECK(filled(data(wanted), 2 * kChunk, 5));
  rig.ranges->give(wanted, 0);
}

TEST(a_range_that_the_helper_could_not_map_is_gone) {
  for (const bool beside : {false, true}) {
    Rig rig(4);
    if (beside) rig.begin_helper();
    for (const char* function : {"cuMemMap", "cuMemSetAccess"}) {
      rig.backend.hooks->fail(rig.backend.ordinal, function, 2);
      ChunkRange* other = rig.ranges->map({2, 3});
      ChunkRange* range = rig.ranges->map({0, 1});
      rig.ranges->keep(range);
      rig.backend.helper->finish();
      rig.backend.hooks->fail(rig.backend.ordinal, nullptr, 0);
      const uint64_t released = rig.ranges->released();
      const bool first = !rig.ranges->take(other, nullptr);
      if (!first) rig.ranges->give(other, 0);
      CHECK(first || !rig.ranges->take(range, nullptr));
      CHECK_EQ(rig.ranges->ranges(), uint64_t{1});
      CHECK_EQ(rig.ranges->released(), released + (first ? 0 : 1));
      ChunkRange* again = rig.ranges->map({0, 1});
      CHECK(rig.ranges->take(again, nullptr));
      fill(data(again), 2 * kChunk, 7);
      rig.ranges->give(again, 0);
      CHECK(rig.ranges->give_back());
    }
  }
}

TEST(what_is_still_to_be_mapped_goes_with_its_chunks) {
  Rig rig(4);
  rig.begin_helper();
  test::Latch latch;
  rig.backend.helper->ask([&] { latch.wait(); });
  rig.ranges->map({0, 1});
  rig.ranges->map({1, 2});
  CHECK(rig.ranges->give_back());
  CHECK_EQ(rig.ranges->ranges(), uint64_t{0});
  CHECK_EQ(rig.ranges->chunks.pool.created(), uint64_t{0});
  latch.open();
}

// However many are kept.
TEST(ranges_that_are_kept_push_out_no_others) {
  Rig rig(6);
  std::vector<uint32_t> numbers(6);
  for (uint32_t chosen = 0; chosen < 64; ++chosen) {
    numbers.clear();
    for (uint32_t number = 0; number < 6; ++number) {
      if ((chosen >> number & 1) != 0) numbers.push_back(number);
    }
    if (numbers.size() > 2) rig.ranges->keep(rig.ranges->map(numbers));
  }
  ChunkRange* const one = rig.ranges->take(1, nullptr);
  rig.ranges->give(one, 0);
  rig.ranges->give(rig.ranges->take(2, nullptr), 0);
  const uint64_t mappings = rig.calls("cuMemMap");
  CHECK(rig.ranges->take(1, nullptr) == one);
  CHECK_EQ(rig.calls("cuMemMap"), mappings);
  rig.ranges->give(one, 0);
}
