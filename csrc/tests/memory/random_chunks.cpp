// Random work in chunked memory against a model that knows nothing of where chunks are.
#include <algorithm>
#include <random>
#include <vector>

#include "chunked_fixture.h"

using test::data;
using test::fill;
using test::filled;
using test::kChunk;
using test::Rig;
using test::status_of;
using um::Block;

namespace {

// What must be true of any placement of chunks: who has some, how many are left, and what everybody's bytes are.
class Model {
 public:
  static constexpr uint64_t kHostChunks = 12;

  Model(uint64_t seed, uint32_t delay_max_us, bool host_mapped)
      : rig_(10, {0, kHostChunks * kChunk, 0, host_mapped, 0}, delay_max_us), host_mapped_(host_mapped), random_(seed) {
    rig_.memory->set_marker([this] { return rig_.fences->record(&rig_.stream, 1); });
  }

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      step();
      const uint64_t used = used_chunks();
      CHECK_EQ(rig_.memory->obtainable(), budget_ > used ? budget_ - used : 0);
      CHECK_EQ(rig_.memory->created() * kChunk, rig_.device_bytes());
      if (used <= budget_) CHECK(rig_.memory->created() <= std::max(budget_, created_));
      created_ = rig_.memory->created();
      most_ = std::max(most_, budget_);
      CHECK(created_ <= most_);
    }
    while (!entries_.empty()) remove(0);
    rig_.synchronize();
    CHECK(rig_.allocations->trim());
    CHECK_EQ(rig_.fences->live(), uint64_t{0});
    CHECK_EQ(rig_.device_bytes(), uint64_t{0});
  }

 private:
  struct Entry {
    Block* block;
    uint64_t bytes, seed;
    bool there, small;
    um::HostRange* host;
  };

  // From the arenas of small blocks, which the model does not predict, and its own books.
  uint64_t used_chunks() const {
    uint64_t used = rig_.memory->pinned().now;
    for (const Entry& entry : entries_) {
      if (entry.there && !entry.small) used += (entry.bytes + kChunk - 1) / kChunk;
    }
    return used;
  }

  void step() {
    const uint64_t what = random_() % 100;
    if (entries_.empty() || (what < 30 && entries_.size() < 12)) return add();
    const size_t index = random_() % entries_.size();
    if (what < 50) return remove(index);
    if (what < 58) {
      budget_ = 3 + random_() % 10;
      rig_.memory->set_budget(budget_ * kChunk);
    } else if (entries_[index].small) {
      CHECK(filled(data(entries_[index].block), entries_[index].bytes, entries_[index].seed));
    } else {
      entries_[index].there ? leave(entries_[index]) : come(entries_[index]);
    }
  }

  void add() {
    const bool small = random_() % 3 == 0;
    const uint64_t bytes = small ? 1 + random_() % (kChunk / 2) : kChunk / 2 + 1 + random_() % (3 * kChunk);
    const uint64_t before = rig_.memory->obtainable();
    Block* block = nullptr;
    const um_status status = status_of([&] { block = rig_.allocate(bytes); });
    if (status != UM_OK) {
      CHECK(small && before == 0);
      CHECK_EQ(status, UM_OUT_OF_DEVICE_MEMORY);
      return;
    }
    entries_.push_back({block, bytes, ++seeds_, small, small, nullptr});
    if (small) {
      fill(data(block), bytes, seeds_);
    } else {
      come(entries_.back());
    }
  }

  // Contents come from the host, or are made.
  void come(Entry& entry) {
    const uint64_t chunks = (entry.bytes + kChunk - 1) / kChunk;
    const bool expected = chunks <= rig_.memory->obtainable();
    if (host_mapped_ && entry.host != nullptr) {
      if (random_() % 2 == 0) CHECK(filled(data(entry.block), entry.bytes, entry.seed));
      rig_.memory->unmap_host(*entry.block);
    }
    CHECK_EQ(rig_.memory->back(*entry.block, rig_.stream), expected);
    CHECK_EQ(rig_.memory->backed(*entry.block), expected ? chunks : 0);
    entry.there = expected;
    if (!expected) {
      if (host_mapped_ && entry.host != nullptr) rig_.memory->map_host(*entry.block, entry.host);
      return;
    }
    if (entry.host != nullptr) rig_.memory->copy_in(*entry.block, entry.host, rig_.stream);
    rig_.synchronize();
    if (entry.host == nullptr) fill(data(entry.block), entry.bytes, entry.seed);
    if (entry.host != nullptr) rig_.memory->give_host(entry.host, 0);
    entry.host = nullptr;
  }

  void leave(Entry& entry) {
    CHECK(filled(data(entry.block), entry.bytes, entry.seed));
    const uint64_t chunks = (entry.bytes + kChunk - 1) / kChunk;
    const bool expected = rig_.memory->host_in_use().now + chunks <= kHostChunks;
    entry.host = rig_.memory->take_host(*entry.block);
    CHECK_EQ(entry.host != nullptr, expected);
    if (!expected) return;
    rig_.memory->copy_out(*entry.block, entry.host, rig_.stream);
    rig_.synchronize();
    rig_.memory->strip(*entry.block);
    entry.there = false;
    if (host_mapped_) rig_.memory->map_host(*entry.block, entry.host);
  }

  // Sometimes while the contents are still being copied: they must be right in the end.
  void remove(size_t index) {
    const Entry entry = entries_[index];
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
    um::HostRange* copy = nullptr;
    if (entry.there && !entry.small) copy = rig_.memory->take_host(*entry.block);
    if (copy != nullptr) {
      rig_.memory->copy_out(*entry.block, copy, rig_.stream);
    }
    const test::HeldFence fence(*rig_.fences, rig_.fences->record(&rig_.stream, 1));
    if (entry.host != nullptr) rig_.memory->give_host(entry.host, fence);
    rig_.free(entry.block, fence);
    if (copy == nullptr) return;
    if (random_() % 2 == 0) add();  // perhaps into the same place
    rig_.synchronize();
    std::vector<unsigned char> contents(entry.bytes);
    rig_.memory->read(copy, 0, contents.data(), contents.size());
    CHECK(filled(contents.data(), entry.bytes, entry.seed));
    rig_.memory->give_host(copy, 0);
  }

  Rig rig_;
  const bool host_mapped_;
  std::mt19937_64 random_;
  std::vector<Entry> entries_;
  uint64_t budget_ = 10, created_ = 0, most_ = 0, seeds_ = 0;
};

}  // namespace

TEST(random_work_agrees_with_the_model) {
  for (uint64_t seed = 1; seed <= 4; ++seed) Model(seed, 0, false).run(600);
}

TEST(random_work_agrees_with_the_model_under_delays) {
  for (uint64_t seed = 5; seed <= 6; ++seed) Model(seed, 300, false).run(200);
}

TEST(random_work_agrees_with_the_model_with_mapped_host_memory) {
  for (uint64_t seed = 7; seed <= 8; ++seed) Model(seed, 0, true).run(300);
}
