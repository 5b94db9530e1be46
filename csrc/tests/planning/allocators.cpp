// Models of allocation: torch's allocator by sequences worked by hand, all of them against brute force.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "planning/allocator.h"

using um::simulator::Allocator;
using um::simulator::AllocatorModel;
using um::simulator::make_allocator;

namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

std::unique_ptr<Allocator> caching(uint64_t budget_bytes = kGiB) {
  return make_allocator(AllocatorModel::caching, budget_bytes, 2 * kMiB);
}

}  // namespace

TEST(caching_small_blocks_share_segments_of_2_mib) {
  const auto torch = caching();
  std::vector<int64_t> blocks;
  for (int i = 0; i < 2; ++i) blocks.push_back(torch->allocate(kMiB));  // the largest small ones
  CHECK_EQ(torch->reserved_bytes(), 2 * kMiB);
  blocks.push_back(torch->allocate(1));
  CHECK_EQ(torch->reserved_bytes(), 4 * kMiB);
  for (const int64_t block : blocks) torch->free(block);
  CHECK_EQ(torch->reserved_bytes(), 4 * kMiB);  // cached
}

TEST(caching_sizes_are_multiples_of_512) {
  const auto torch = caching();
  for (int i = 0; i < 4096; ++i) torch->allocate(1 + i % 512);
  CHECK_EQ(torch->reserved_bytes(), 2 * kMiB);
  torch->allocate(1);
  CHECK_EQ(torch->reserved_bytes(), 4 * kMiB);
}

TEST(caching_blocks_below_10_mib_are_cut_from_segments_of_20_mib) {
  const auto torch = caching();
  torch->allocate(kMiB + 1);
  CHECK_EQ(torch->reserved_bytes(), 20 * kMiB);
  torch->allocate(9 * kMiB);  // from what is left of it
  torch->allocate(9 * kMiB - kMiB);
  CHECK_EQ(torch->reserved_bytes(), 20 * kMiB);
  torch->allocate(2 * kMiB);
  CHECK_EQ(torch->reserved_bytes(), 40 * kMiB);
}

TEST(caching_large_blocks_have_segments_of_multiples_of_2_mib) {
  const auto torch = caching();
  torch->allocate(10 * kMiB);
  CHECK_EQ(torch->reserved_bytes(), 10 * kMiB);
  torch->allocate(10 * kMiB + 1);
  CHECK_EQ(torch->reserved_bytes(), 22 * kMiB);
}

// A large block is cut only where more than 1 MiB is left over.
TEST(caching_large_blocks_keep_a_remainder_of_up_to_1_mib) {
  const auto torch = caching();
  int64_t block = torch->allocate(12 * kMiB);
  torch->free(block);
  block = torch->allocate(11 * kMiB);  // gets all 12
  torch->allocate(kMiB + 1);           // nothing is left of that segment: a new one of 20
  CHECK_EQ(torch->reserved_bytes(), 32 * kMiB);
  torch->free(block);
  torch->allocate(11 * kMiB - 512);  // leaves 1 MiB + 512
  torch->allocate(kMiB + 512);       // which is the best fit
  CHECK_EQ(torch->reserved_bytes(), 32 * kMiB);
}

TEST(caching_free_neighbours_join_within_a_segment) {
  const auto torch = caching();
  const int64_t a = torch->allocate(6 * kMiB), b = torch->allocate(6 * kMiB), c = torch->allocate(8 * kMiB);
  CHECK_EQ(torch->reserved_bytes(), 20 * kMiB);
  torch->free(a);
  torch->free(c);
  torch->allocate(9 * kMiB);  // neither hole is large enough
  CHECK_EQ(torch->reserved_bytes(), 40 * kMiB);
  torch->free(b);
  torch->allocate(20 * kMiB);  // the whole first segment
  CHECK_EQ(torch->reserved_bytes(), 40 * kMiB);
}

TEST(caching_gives_free_segments_back_before_it_fails) {
  const auto torch = caching(40 * kMiB);
  const int64_t a = torch->allocate(20 * kMiB);
  const int64_t b = torch->allocate(4 * kMiB);
  torch->free(a);
  CHECK(torch->allocate(21 * kMiB) == Allocator::kNoRoom);  // b keeps its segment of 20
  CHECK_EQ(torch->reserved_bytes(), 20 * kMiB);             // and a's has gone back all the same
  torch->free(b);
  CHECK(torch->allocate(30 * kMiB) != Allocator::kNoRoom);
  CHECK_EQ(torch->reserved_bytes(), 30 * kMiB);
}

// The smallest hole that is large enough; of equal ones the lowest; the end of the pool last, however small it is.
TEST(best_fit_takes_the_smallest_hole_then_the_lowest) {
  const auto nearly_full = make_allocator(AllocatorModel::best_fit, 100 * kKiB, 2 * kMiB);
  const int64_t large = nearly_full->allocate(80 * kKiB);
  nearly_full->allocate(10 * kKiB);
  nearly_full->free(large);
  nearly_full->allocate(10 * kKiB);
  CHECK_EQ(nearly_full->reserved_bytes(), 90 * kKiB);
  const auto pool = make_allocator(AllocatorModel::best_fit, 100 * kKiB, 2 * kMiB);
  std::vector<int64_t> blocks;
  for (const uint64_t size : {10, 1, 5, 1, 5, 1}) blocks.push_back(pool->allocate(size * kKiB));
  CHECK_EQ(pool->reserved_bytes(), 23 * kKiB);
  for (const size_t index : {0, 2, 4}) pool->free(blocks[index]);
  CHECK_EQ(pool->reserved_bytes(), 23 * kKiB);  // holes below the last block are taken all the same
  const int64_t lowest = pool->allocate(5 * kKiB);
  pool->free(blocks[5]);
  CHECK_EQ(pool->reserved_bytes(), 17 * kKiB);  // the second hole of 5 was free: all behind the last block of 1 is
  pool->free(lowest);
  CHECK(pool->allocate(85 * kKiB) == Allocator::kNoRoom);
  CHECK(pool->allocate(83 * kKiB) != Allocator::kNoRoom);
  CHECK_EQ(pool->reserved_bytes(), 100 * kKiB);
}

TEST(chunks_back_any_range_and_waste_less_than_one_a_block) {
  const auto chunks = make_allocator(AllocatorModel::va_chunks, 10 * 20 * kMiB, 20 * kMiB);
  std::vector<int64_t> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(chunks->allocate(11 * kMiB));
  CHECK_EQ(chunks->reserved_bytes(), 200 * kMiB);
  for (size_t i = 0; i < 10; i += 2) chunks->free(blocks[i]);  // five holes: one block of five chunks fits
  CHECK(chunks->allocate(5 * 20 * kMiB + 1) == Allocator::kNoRoom);
  CHECK(chunks->allocate(5 * 20 * kMiB) != Allocator::kNoRoom);
  CHECK_EQ(chunks->reserved_bytes(), 200 * kMiB);
  CHECK_EQ(chunks->chunks_mapped(), 10u + 4u);  // one of the kept mappings was grown by four
}

TEST(small_blocks_share_chunks) {
  const auto chunks = make_allocator(AllocatorModel::va_chunks, 40 * kMiB, 20 * kMiB);
  const int64_t a = chunks->allocate(10 * kMiB), b = chunks->allocate(10 * kMiB), c = chunks->allocate(1);
  CHECK_EQ(chunks->reserved_bytes(), 40 * kMiB);
  chunks->free(a);
  CHECK_EQ(chunks->reserved_bytes(), 40 * kMiB);
  chunks->free(b);
  CHECK_EQ(chunks->reserved_bytes(), 20 * kMiB);
  chunks->free(c);
  CHECK_EQ(chunks->reserved_bytes(), 0u);
}

namespace {

// A pool as a map of bytes of 512, each holding the number of its block or 0.
class Reference {
 public:
  explicit Reference(size_t units) : owner_(units) {}
  bool allocate(int number, size_t units) {
    size_t best = owner_.size(), best_length = owner_.size() + 1;
    for (size_t begin = 0; begin < owner_.size();) {
      size_t end = begin;
      while (end < owner_.size() && owner_[end] == owner_[begin]) ++end;
      // The hole at the end counts as larger than any other.
      const size_t length = end == owner_.size() ? owner_.size() : end - begin;
      if (owner_[begin] == 0 && end - begin >= units && length < best_length) {
        best = begin;
        best_length = length;
      }
      begin = end;
    }
    if (best == owner_.size()) return false;
    std::fill_n(owner_.begin() + static_cast<std::ptrdiff_t>(best), units, number);
    return true;
  }
  void free(int number) { std::replace(owner_.begin(), owner_.end(), number, 0); }
  uint64_t extent_bytes() const {
    size_t end = owner_.size();
    while (end > 0 && owner_[end - 1] == 0) --end;
    return end * 512;
  }

 private:
  std::vector<int> owner_;
};

}  // namespace

TEST(best_fit_is_what_a_map_of_all_bytes_says) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const size_t units = 50 + random() % 200;
    const auto pool = make_allocator(AllocatorModel::best_fit, units * 512 + random() % 512, 2 * kMiB);
    Reference reference(units);
    std::map<int, int64_t> live;
    for (int number = 1; number < 300; ++number) {
      if (!live.empty() && random() % 2 == 0) {
        const auto freed = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        pool->free(freed->second);
        reference.free(freed->first);
        live.erase(freed);
      } else {
        const uint64_t bytes = 1 + random() % (512 * 30);
        const int64_t block = pool->allocate(bytes);
        CHECK_EQ(block != Allocator::kNoRoom, reference.allocate(number, (bytes + 511) / 512));
        if (block != Allocator::kNoRoom) live[number] = block;
      }
      CHECK_EQ(pool->reserved_bytes(), reference.extent_bytes());
    }
  }
}

// What every model keeps: never above the budget, at least what is live, everything free again at the end.
TEST(every_model_keeps_its_budget) {
  std::mt19937 random(11);
  for (const AllocatorModel model :
       {AllocatorModel::exact, AllocatorModel::caching, AllocatorModel::best_fit, AllocatorModel::va_chunks}) {
    for (int round = 0; round < 20; ++round) {
      const uint64_t budget_bytes = (50 + random() % 500) * kMiB;
      const auto model_under_test = make_allocator(model, budget_bytes, 2 * kMiB);
      std::vector<std::pair<int64_t, uint64_t>> live;
      uint64_t live_bytes = 0, whole_chunks = 0;
      for (int i = 0; i < 400; ++i) {
        const uint64_t bytes = 1 + random() % (random() % 3 == 0 ? 40 * kMiB : 3 * kMiB);
        const int64_t block = model_under_test->allocate(bytes);
        if (block != Allocator::kNoRoom) {
          live.push_back({block, bytes});
          live_bytes += bytes;
        } else if (model == AllocatorModel::exact) {
          CHECK(live_bytes + bytes > budget_bytes);
        }
        if (!live.empty() && (block == Allocator::kNoRoom || random() % 2 == 0)) {
          const size_t index = random() % live.size();
          model_under_test->free(live[index].first);
          live_bytes -= live[index].second;
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
        }
        whole_chunks = 0;
        for (const auto& each : live) whole_chunks += (each.second + 2 * kMiB - 1) / (2 * kMiB);
        CHECK(model_under_test->reserved_bytes() <= budget_bytes);
        CHECK(model_under_test->reserved_bytes() >= live_bytes);
        if (model == AllocatorModel::exact) CHECK_EQ(model_under_test->reserved_bytes(), live_bytes);
        if (model == AllocatorModel::va_chunks) CHECK(model_under_test->reserved_bytes() <= whole_chunks * 2 * kMiB);
      }
      for (const auto& each : live) model_under_test->free(each.first);
      if (model != AllocatorModel::caching) CHECK_EQ(model_under_test->reserved_bytes(), 0u);
      CHECK(model_under_test->allocate(budget_bytes / (2 * kMiB) * (2 * kMiB)) != Allocator::kNoRoom);
    }
  }
}
