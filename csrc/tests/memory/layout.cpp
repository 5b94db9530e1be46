// A layout on an emulated device: what a step takes through it, and a driver that fails.
#include <algorithm>
#include <map>
#include <utility>

#include "chunked_fixture.h"
#include "memory/movable_memory.h"

using test::kChunk;
using test::kMiB;
using um::ChunkRange;
using um::Layout;

namespace {

struct Rig : test::Emulated {
  explicit Rig(uint64_t budget_chunks)
      : memory(std::make_unique<um::MovableMemory>(nullptr, backend, *fences, blocks,
                                                   test::chunk_options(budget_chunks * kChunk, 16 * kMiB))) {}
  ~Rig() {
    backend.hooks->fail(backend.ordinal, nullptr, 0);
    CHECK(memory->give_back());
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  Layout& layout() const { return memory->layout; }
  uint64_t mappings() const { return backend.hooks->calls(backend.ordinal, "cuMemMap"); }

  // Storages 0 to 2 of 3, 2 and 4 chunks, of which the last two are there at once, and 3, which lasts until the next
  // step has begun. What each step took.
  std::vector<ChunkRange*> step() {
    layout().begin_step();
    ChunkRange* const first = take(3, 0);
    layout().give(first, 0);
    if (lasting != nullptr) layout().give(lasting, 0);
    ChunkRange* const second = take(2, 1);
    ChunkRange* const third = take(4, 2);
    layout().give(second, 0);
    lasting = take(3, 3);
    layout().give(third, 0);
    return {first, second, third, lasting};
  }
  ChunkRange* take(uint64_t chunks, int32_t storage) const {
    ChunkRange* const range = layout().take(chunks, nullptr, storage);
    CHECK(range != nullptr);
    CHECK_EQ(range->chunks.size(), chunks);
    return range;
  }
  void end() {
    layout().give(lasting, 0);
    lasting = nullptr;
  }

  std::unique_ptr<um::MovableMemory> memory;
  ChunkRange* lasting = nullptr;
};

}  // namespace

TEST(the_third_of_three_like_steps_has_a_layout) {
  Rig rig(8);
  rig.step();
  rig.step();
  rig.step();
  CHECK_EQ(rig.layout().layouts(), uint64_t{0});
  CHECK_EQ(rig.layout().missed(), uint64_t{12});  // nobody had a range of its own
  const std::vector<ChunkRange*> first = rig.step();
  const uint64_t mappings = rig.mappings();
  for (int each = 0; each < 5; ++each) CHECK(rig.step() == first);
  CHECK_EQ(rig.layout().missed(), uint64_t{0});
  CHECK_EQ(rig.layout().layouts(), uint64_t{1});
  CHECK_EQ(rig.mappings(), mappings);
  rig.end();
}

TEST(which_chunks_a_step_takes_follows_from_the_steps_alone) {
  const auto steps = [](bool past) {  // who had the chunks of each stay before
    Rig rig(9);
    // What is mapped for two, three and four chunks are the same ones.
    for (const uint64_t chunks : past ? std::vector<uint64_t>{9, 3, 6, 2, 7, 4} : std::vector<uint64_t>{})
      rig.layout().give(rig.take(chunks, -1), 0);
    std::map<uint64_t, int> last;  // stay, by chunk
    std::vector<std::vector<int>> found;
    for (int each = 0; each < 8; ++each) {
      for (const ChunkRange* range : rig.step()) {
        std::vector<int>& before = found.emplace_back();
        for (const um::Chunk* chunk : range->chunks)
          before.push_back(std::exchange(last[chunk->number], static_cast<int>(found.size())));
        std::sort(before.begin(), before.end());
      }
    }
    rig.end();
    return found;
  };
  CHECK(steps(false) == steps(true));
}

TEST(in_which_order_steps_give_back_several_at_once_decides_nothing) {
  const auto steps = [](std::vector<size_t> order, bool another_in_each_step) {
    Rig rig(6);
    std::vector<uint64_t> found;  // the number of each stay's chunk
    std::vector<ChunkRange*> held;
    const auto take = [&](int32_t storage) {
      held.push_back(rig.take(1, storage));
      found.push_back(held.back()->chunks[0]->number);
    };
    const auto give_all = [&] {
      for (const size_t i : order) rig.layout().give(held[i], 0);
      held.clear();
    };
    for (int each = 0; each < 8; ++each) {
      rig.layout().begin_step();
      for (const int32_t storage : {0, 1, 2}) take(storage);
      give_all();
      rig.layout().op(1);
      for (const int32_t storage : {3, 4, 5}) take(storage);
      give_all();
      if (another_in_each_step) std::next_permutation(order.begin(), order.end());
    }
    CHECK_EQ(rig.layout().layouts(), uint64_t{1});
    CHECK_EQ(rig.layout().missed(), uint64_t{0});

    rig.layout().begin_step();
    for (const int32_t storage : {0, 1, 2}) take(storage);
    ChunkRange* const others = rig.take(3, 9);
    give_all();
    for (const int32_t storage : {3, 4, 5}) take(storage);  // somebody has theirs
    CHECK_EQ(rig.layout().missed(), uint64_t{6});
    give_all();
    rig.layout().give(others, 0);
    return found;
  };
  const std::vector<uint64_t> first = steps({0, 1, 2}, false);
  CHECK(steps({2, 0, 1}, false) == first);
  CHECK(steps({0, 1, 2}, true) == first);
}

TEST(what_was_given_back_before_an_op_is_taken_before_what_was_given_back_after_it) {
  Rig rig(2);
  ChunkRange *const one = rig.take(1, 0), *const other = rig.take(1, 1);
  rig.layout().give(other, 0);
  rig.layout().op(1);
  rig.layout().give(one, 0);
  CHECK(rig.take(1, 0) == other);
  rig.layout().give(other, 0);
}

TEST(whoever_is_in_the_way_is_told) {
  Rig rig(8);
  for (int each = 0; each < 5; ++each) rig.step();
  rig.layout().begin_step();
  CHECK(rig.layout().in_the_way(3, 0).empty());
  ChunkRange* const first = rig.take(3, 0);
  rig.layout().leaves(first, 0);  // and nobody has handed it on
  rig.end();
  ChunkRange* const second = rig.take(2, 1);
  const std::vector<const ChunkRange*> found = rig.layout().in_the_way(4, 2);
  CHECK(found == std::vector<const ChunkRange*>{first});  // of eight chunks it cannot have four others
  for (ChunkRange* each : {first, second}) rig.layout().give(each, 0);
}

TEST(a_step_goes_on_where_the_driver_maps_no_layout) {
  uint64_t failed = 0;
  for (uint64_t nth = 1; nth <= 12; ++nth) {
    Rig rig(9);  // so few that a layout has ranges that no step had before
    for (int each = 0; each < 3; ++each) rig.step();
    CHECK(rig.backend.hooks->fail(rig.backend.ordinal, "cuMemMap", nth));
    rig.layout().begin_step();
    rig.backend.hooks->fail(rig.backend.ordinal, nullptr, 0);
    rig.step();
    failed += rig.layout().missed() > 0 ? 1 : 0;
    for (int each = 0; each < 12; ++each) rig.step();
    CHECK_EQ(rig.layout().missed(), uint64_t{0});
    rig.end();
  }
  CHECK(failed > 0);
}

TEST(what_stays_for_longer_than_a_step_keeps_its_chunks_to_itself) {
  Rig rig(11);
  rig.layout().begin_step();
  ChunkRange* const held = rig.take(2, 9);
  for (int each = 0; each < 4; ++each) rig.step();
  const std::vector<ChunkRange*> first = rig.step();
  for (int each = 0; each < 5; ++each) CHECK(rig.step() == first);
  CHECK_EQ(rig.layout().missed(), uint64_t{0});
  rig.layout().give(held, 0);
  CHECK(rig.step() == first);
  rig.end();
}
