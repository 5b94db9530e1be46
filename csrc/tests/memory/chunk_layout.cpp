// Which chunks stays are given: cases worked by hand, and random steps, whose chunks are looked up tick by tick.
#include "memory/chunk_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "check.h"

using um::Stay;
using Chunks = std::vector<uint32_t>;

namespace {

// By the host's calls, and at the same times by the device's clock.
Stay stay(uint64_t count, int64_t begin, int64_t end, Chunks chunks = {}) {
  return {count, {begin, static_cast<double>(begin)}, {end, static_cast<double>(end)}, std::move(chunks)};
}

struct Step {
  std::vector<Stay> stays;
  um::Moment length;
  uint32_t count = 0;
  Chunks others;
  uint64_t load = 0;  // chunks that are held at once

  void lay_out() { um::lay_out(&stays, length, count, others); }
};

// Each tick of the circle begins a stay or ends one. The device's clock runs on while the host stands, and lags.
Step random_step(uint64_t seed, double slack) {
  std::mt19937_64 chance(seed);
  const size_t number = 2 + chance() % 40;
  std::vector<int64_t> ticks(2 * number);
  std::iota(ticks.begin(), ticks.end(), 0);
  std::shuffle(ticks.begin(), ticks.end(), chance);
  Step step;
  const auto length = static_cast<int64_t>(2 * number);
  step.length = {length, static_cast<double>(3 * length)};
  for (size_t i = 0; i < number; ++i) {
    const int64_t begin = ticks[2 * i], end = ticks[2 * i + 1] > begin ? ticks[2 * i + 1] : ticks[2 * i + 1] + length;
    const auto clock = [&](int64_t tick) {
      return static_cast<double>(3 * tick + static_cast<int64_t>(chance() % 12));
    };
    step.stays.push_back({1 + chance() % 9, {begin, clock(begin)}, {end, clock(end)}, {}});
  }
  std::sort(step.stays.begin(), step.stays.end(),
            [](const Stay& a, const Stay& b) { return a.begin.tick < b.begin.tick; });
  for (int64_t tick = 0; tick < length; ++tick) {
    uint64_t load = 0;
    for (const Stay& each : step.stays) {
      if ((each.begin.tick <= tick && tick < each.end.tick) || tick + length < each.end.tick) load += each.count;
    }
    step.load = std::max(step.load, load);
  }
  const auto least = static_cast<uint32_t>(static_cast<double>(step.load) * slack);
  step.count = least + static_cast<uint32_t>(chance() % 5);
  Chunks all(step.count);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), chance);
  step.others.assign(all.begin() + least, all.end());
  size_t next = 0;
  for (Stay& each : step.stays) {
    if (each.end.tick <= length) continue;
    each.chunks.assign(all.begin() + static_cast<std::ptrdiff_t>(next),
                       all.begin() + static_cast<std::ptrdiff_t>(next + each.count));
    std::sort(each.chunks.begin(), each.chunks.end());
    next += each.count;
  }
  return step;
}

void check_no_two_meet(const Step& step) {
  const std::set<uint32_t> others(step.others.begin(), step.others.end());
  std::map<std::pair<uint32_t, int64_t>, size_t> who;  // by chunk and tick of the circle
  for (size_t i = 0; i < step.stays.size(); ++i) {
    const Stay& each = step.stays[i];
    CHECK(each.chunks.size() <= each.count);
    for (const uint32_t chunk : each.chunks) {
      CHECK(chunk < step.count);
      CHECK(others.count(chunk) == 0);
      for (int64_t tick = each.begin.tick; tick < each.end.tick; ++tick)
        CHECK(who.emplace(std::pair(chunk, tick % step.length.tick), i).second);
    }
  }
}

uint64_t lacking(const Step& step) {
  uint64_t chunks = 0;
  for (const Stay& each : step.stays) chunks += each.count - each.chunks.size();
  return chunks;
}

}  // namespace

TEST(what_is_idle_first_is_taken_first) {
  std::vector<Stay> stays{stay(1, 0, 3), stay(1, 1, 2), stay(1, 4, 5), stay(2, 6, 7)};
  um::lay_out(&stays, {8, 8}, 2, {});
  CHECK(stays[0].chunks != stays[1].chunks);
  CHECK(stays[2].chunks == stays[1].chunks);
  CHECK(stays[3].chunks == (Chunks{0, 1}));
}

TEST(others_change_places_for_a_stay_that_finds_too_few_chunks) {
  // Chunk 1 is idle first, and the only one that is free for all of the second stay.
  std::vector<Stay> stays{stay(1, 2, 4), stay(1, 3, 6), stay(1, 5, 9, {0})};
  um::lay_out(&stays, {7, 7}, 2, {});
  CHECK(stays[0].chunks == (Chunks{0}));
  CHECK(stays[1].chunks == (Chunks{1}));
}

TEST(of_those_who_could_change_places_those_do_for_whom_the_device_waits_least) {
  // The device is done with chunk 0 at 9: the first stay would wait for it, the second one, which begins at 10, not.
  std::vector<Stay> stays{stay(1, 6, 10), stay(1, 7, 11), stay(1, 8, 15), stay(1, 12, 22, {0})};
  stays[1].begin.clock = 10;
  stays[3].end.clock = 29;
  um::lay_out(&stays, {20, 20}, 3, {});
  CHECK(stays[0].chunks == (Chunks{2}));
  CHECK(stays[1].chunks == (Chunks{0}));
  CHECK(stays[2].chunks == (Chunks{1}));
}

TEST(what_the_next_circle_begins_with_is_not_waited_for) {
  // The last stay ends on the device when the first one has begun again.
  std::vector<Stay> stays{stay(1, 0, 2), stay(1, 3, 5), stay(1, 6, 7)};
  stays[1].begin.clock = 1;
  stays[2].end.clock = 11;
  um::lay_out(&stays, {8, 8}, 2, {});
  CHECK(stays[1].chunks != stays[0].chunks);
  CHECK(stays[2].chunks == stays[1].chunks);
}

TEST(a_stay_without_enough_chunks_has_those_that_there_are) {
  std::vector<Stay> stays{stay(2, 0, 5), stay(2, 1, 2), stay(1, 3, 4)};
  um::lay_out(&stays, {6, 6}, 4, {2});
  CHECK_EQ(stays[0].chunks.size() + stays[1].chunks.size(), size_t{3});
  CHECK_EQ(stays[2].chunks.size(), size_t{1});
}

TEST(stays_that_meet_share_no_chunk) {
  uint64_t spanning = 0, missing = 0, all = 0;
  for (uint64_t seed = 0; seed < check::times(2000); ++seed) {
    Step step = random_step(check::seed(seed), seed % 2 == 0 ? 1.0 : 1.2);
    const Step before = step;
    Step again = step;
    step.lay_out();
    check_no_two_meet(step);
    again.lay_out();
    for (size_t i = 0; i < step.stays.size(); ++i) {
      CHECK(step.stays[i].chunks == again.stays[i].chunks);
      if (before.stays[i].chunks.empty()) continue;
      CHECK(step.stays[i].chunks == before.stays[i].chunks);
      ++spanning;
    }
    missing += lacking(step);
    for (const Stay& each : step.stays) all += each.count;
  }
  CHECK(spanning > 0);
  CHECK(missing * 60 < all);
}

TEST(with_chunks_for_all_stays_each_has_some) {
  for (uint64_t seed = 0; seed < check::times(400); ++seed) {
    Step step = random_step(check::seed(seed), 1.0);
    for (const Stay& each : step.stays) step.count += static_cast<uint32_t>(each.count);
    step.lay_out();
    check_no_two_meet(step);
    CHECK_EQ(lacking(step), uint64_t{0});
  }
}
