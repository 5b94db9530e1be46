#include "memory/chunk_layout.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace um {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Moment kLongAgo{-1, -kInfinity};
constexpr Moment kNever{std::numeric_limits<int64_t>::max(), kInfinity};

// Bounds of the searches. Larger values made no measured step faster.
constexpr uint64_t kMostPairs = 1000;
constexpr int kMostCuts = 8;

using ChunkIndices = std::vector<uint32_t>;

// Chunks with the same free interval: `ended` is the end of their last stay, `claimed` the begin of the next stay that
// already has them.
struct Group {
  Moment ended, claimed;
  ChunkIndices chunks;
};

class Pass {
 public:
  Pass(const std::vector<Stay>& stays, Moment length, uint32_t count, const ChunkIndices& others)
      : chunks(stays.size()), stays_(stays), length_(length), held_(count), held_until_(count, kLongAgo) {
    std::vector<bool> free(count, true);
    for (const uint32_t chunk : others) free[chunk] = false;
    for (size_t i = 0; i < stays.size(); ++i) {
      const Stay& stay = stays[i];
      if (stay.chunks.empty()) continue;
      const Moment ended{stay.end.tick - length.tick, stay.end.clock - length.clock};
      for (const uint32_t chunk : stay.chunks) {
        free[chunk] = false;
        held_until_[chunk] = ended;
      }
      groups_.push_back({ended, stay.begin, stay.chunks});
      chunks[i] = stay.chunks;
    }
    Group rest{kLongAgo, kNever, {}};
    for (uint32_t chunk = 0; chunk < count; ++chunk) {
      if (free[chunk]) rest.chunks.push_back(chunk);
    }
    groups_.push_back(std::move(rest));
  }

  // Assigns chunks to stay `i`. Stays are placed in the order in which they begin.
  void place(size_t i) {
    for (const Group& each : choose(i)) hold(i, each.claimed, each.chunks);
    while (chunks[i].size() < stays_[i].count && exchange_for(i)) {
    }
  }

  std::vector<ChunkIndices> chunks;  // by stay

 private:
  // Takes chunks for a stay and returns them by the groups they were in. There may be fewer than the stay needs.
  std::vector<Group> choose(size_t i) {
    const Stay& stay = stays_[i];
    std::vector<size_t> found;
    uint64_t free = 0;
    for (size_t at = 0; at < groups_.size(); ++at) {
      while (at < groups_.size() && groups_[at].chunks.empty()) {
        std::swap(groups_[at], groups_.back());
        groups_.pop_back();
      }
      if (at == groups_.size()) break;
      const Group& group = groups_[at];
      if (group.ended.tick > stay.begin.tick || group.claimed.tick < stay.end.tick) continue;
      found.push_back(at);
      free += group.chunks.size();
    }
    const auto wait = [&](const Group& group) {
      return std::max(group.ended.clock - stay.begin.clock, 0.0) + std::max(stay.end.clock - group.claimed.clock, 0.0);
    };
    std::sort(found.begin(), found.end(), [&](size_t a, size_t b) {
      const Group &one = groups_[a], &other = groups_[b];
      return std::tuple(wait(one), one.ended.clock, one.claimed.tick, a) <
             std::tuple(wait(other), other.ended.clock, other.claimed.tick, b);
    });
    std::vector<Group> taken;
    for (uint64_t lacking = std::min(stay.count, free); lacking > 0; lacking -= taken.back().chunks.size()) {
      Group& from = groups_[found[taken.size()]];
      const auto begin =
          from.chunks.end() - static_cast<std::ptrdiff_t>(std::min<uint64_t>(lacking, from.chunks.size()));
      taken.push_back({from.ended, from.claimed, ChunkIndices(begin, from.chunks.end())});
      from.chunks.erase(begin, from.chunks.end());
    }
    return taken;
  }

  // The first stay of a chunk claims it again in the next circle.
  void hold(size_t i, Moment claimed, const ChunkIndices& taken) {
    const Moment begin = stays_[i].begin;
    if (claimed.tick == kNever.tick) claimed = {begin.tick + length_.tick, begin.clock + length_.clock};
    for (const uint32_t chunk : taken) {
      held_[chunk].push_back(i);
      chunks[i].push_back(chunk);
    }
    const auto same = std::find_if(groups_.begin(), groups_.end(), [&](const Group& other) {
      return other.claimed.tick == claimed.tick && other.ended.tick == stays_[i].end.tick;
    });
    if (same == groups_.end()) {
      groups_.push_back({stays_[i].end, claimed, taken});
    } else {
      same->chunks.insert(same->chunks.end(), taken.begin(), taken.end());
    }
  }

  // A time at which two chunks are both free: how many stays each has before it, and how much longer the device waits
  // if the chunks swap the stays after it.
  struct Cut {
    size_t kept[2] = {0, 0};
    double cost = kInfinity;
  };
  // A chunk of group `a` and one of group `b`.
  struct Pair {
    size_t a = 0, b = 0;
    uint32_t free = 0, held = 0;
    Cut cut;
  };

  // Makes one more chunk available to a stay. `free` is free when the stay begins, but is claimed before the stay ends.
  // In `held` a stay ends before `free` is claimed, and then `held` is free until stay `i` has ended. If both were free
  // at an earlier time, they swap their stays since then, and `held` is free for all of stay `i`.
  bool exchange_for(size_t i) {
    const Pair best = find_exchange(stays_[i]);
    if (best.cut.cost == kInfinity) return false;
    exchange(best);
    trade(best, i);
    return true;
  }

  // Returns the first pair that adds no wait, or else the best of kMostPairs pairs.
  Pair find_exchange(const Stay& stay) const {
    Pair best;
    uint64_t found = 0;
    for (size_t a = 0; a < groups_.size(); ++a) {
      if (groups_[a].ended.tick > stay.begin.tick || groups_[a].claimed.tick <= stay.begin.tick) continue;
      for (size_t b = 0; b < groups_.size(); ++b) {
        const bool ends = groups_[b].ended.tick > stay.begin.tick && groups_[b].ended.tick <= groups_[a].claimed.tick;
        if (!ends || groups_[b].claimed.tick < stay.end.tick) continue;
        for (const uint32_t free : groups_[a].chunks) {
          for (const uint32_t held : groups_[b].chunks) {
            const Cut cut = cut_of(free, held);
            if (cut.cost < best.cut.cost) best = {a, b, free, held, cut};
            if (cut.cost < kInfinity) ++found;
            if (best.cut.cost <= 0 || found == kMostPairs) return best;
          }
        }
      }
    }
    return best;
  }

  // After the exchange `free` ends when `held` did before, and the stay takes `held`.
  void trade(const Pair& pair, size_t i) {
    const Group later{groups_[pair.b].ended, groups_[pair.a].claimed, {pair.free}};
    const Moment claimed = groups_[pair.b].claimed;
    ChunkIndices &frees = groups_[pair.a].chunks, &helds = groups_[pair.b].chunks;
    frees.erase(std::find(frees.begin(), frees.end(), pair.free));
    helds.erase(std::find(helds.begin(), helds.end(), pair.held));
    groups_.push_back(later);
    hold(i, claimed, {pair.held});
  }

  // Returns the best of the last kMostCuts times at which both chunks were free, given that `other` is held now.
  Cut cut_of(uint32_t one, uint32_t other) const {
    const uint32_t pair[] = {one, other};
    Cut cut{{held_[one].size(), held_[other].size()}, kInfinity}, best;
    for (int cuts = 0; cuts < kMostCuts && cut.kept[1] > 0 && best.cost > 0; ++cuts) {
      int64_t tick = stays_[held_[other][cut.kept[1] - 1]].begin.tick, before = 0;
      do {
        before = tick;
        for (const int which : {0, 1}) {
          const std::vector<size_t>& held = held_[pair[which]];
          size_t& kept = cut.kept[which];
          while (kept > 0 && stays_[held[kept - 1]].end.tick > tick)
            tick = std::min(tick, stays_[held[--kept]].begin.tick);
          if (kept == 0 && held_until_[pair[which]].tick > tick) return best;
        }
      } while (tick != before);
      cut.cost = 0;
      for (const int which : {0, 1}) cut.cost += wait(pair, cut, which, 1 - which) - wait(pair, cut, which, which);
      if (cut.cost < best.cost) best = cut;
    }
    return best;
  }

  // Returns how long the device waits if the first stay after the cut in `after` follows the last one before it in
  // `before`.
  double wait(const uint32_t (&pair)[2], const Cut& cut, int before, int after) const {
    const std::vector<size_t>&held = held_[pair[before]], &others = held_[pair[after]];
    if (cut.kept[after] == others.size()) return 0;
    const size_t kept = cut.kept[before];
    const double ended = kept > 0 ? stays_[held[kept - 1]].end.clock : held_until_[pair[before]].clock;
    return std::max(ended - stays_[others[cut.kept[after]]].begin.clock, 0.0);
  }

  // Swaps the stays that two chunks have after the cut.
  void exchange(const Pair& exchanged) {
    const uint32_t pair[] = {exchanged.free, exchanged.held};
    const auto after = [&](int which) {
      const std::vector<size_t>& held = held_[pair[which]];
      return std::vector<size_t>(held.begin() + static_cast<std::ptrdiff_t>(exchanged.cut.kept[which]), held.end());
    };
    const std::vector<size_t> mine = after(0), theirs = after(1);
    for (const int which : {0, 1}) {
      const std::vector<size_t>&from = which == 0 ? mine : theirs, &to = which == 0 ? theirs : mine;
      held_[pair[which]].resize(exchanged.cut.kept[which]);
      held_[pair[which]].insert(held_[pair[which]].end(), to.begin(), to.end());
      for (const size_t stay : from) {
        if (std::find(to.begin(), to.end(), stay) != to.end()) continue;  // this stay has both chunks
        std::replace(chunks[stay].begin(), chunks[stay].end(), pair[which], pair[1 - which]);
      }
    }
  }

  const std::vector<Stay>& stays_;
  const Moment length_;
  std::vector<Group> groups_;
  std::vector<std::vector<size_t>> held_;  // by chunk: its stays, in order
  std::vector<Moment> held_until_;         // by chunk: the end of the stay that had it when the circle began
};

}  // namespace

void lay_out(std::vector<Stay>* stays, Moment length, uint32_t count, const std::vector<uint32_t>& others) {
  Pass pass(*stays, length, count, others);
  for (size_t i = 0; i < stays->size(); ++i) {
    if ((*stays)[i].chunks.empty()) pass.place(i);
  }
  for (size_t i = 0; i < stays->size(); ++i) {
    std::sort(pass.chunks[i].begin(), pass.chunks[i].end());
    (*stays)[i].chunks = std::move(pass.chunks[i]);
  }
}

}  // namespace um
