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

using Chunks = std::vector<uint32_t>;

// Chunks that are alike: when the last stay in them ends, and when one begins that has them already.
struct Group {
  Moment ended, claimed;
  Chunks chunks;
};

class Pass {
 public:
  Pass(const std::vector<Stay>& stays, Moment length, uint32_t count, const Chunks& others)
      : chunks(stays.size()), stays_(stays), held_(count), held_until_(count, kLongAgo.tick) {
    std::vector<bool> free(count, true);
    for (const uint32_t chunk : others) free[chunk] = false;
    for (size_t i = 0; i < stays.size(); ++i) {
      const Stay& stay = stays[i];
      if (stay.chunks.empty()) continue;
      const Moment ended{stay.end.tick - length.tick, stay.end.clock - length.clock};
      for (const uint32_t chunk : stay.chunks) {
        free[chunk] = false;
        held_until_[chunk] = ended.tick;
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

  // The next stay.
  void place(size_t i) {
    for (const Group& each : choose(i)) hold(i, each.claimed, each.chunks);
    while (chunks[i].size() < stays_[i].count && exchange_for(i)) {
    }
  }

  std::vector<Chunks> chunks;  // by stay

 private:
  // What the stay takes, and of what: all that there is when that is too little.
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
    std::sort(found.begin(), found.end(), [&](size_t a, size_t b) {
      const Group &one = groups_[a], &other = groups_[b];
      return std::tie(one.ended.clock, one.claimed.tick, a) < std::tie(other.ended.clock, other.claimed.tick, b);
    });
    std::vector<Group> taken;
    for (uint64_t lacking = std::min(stay.count, free); lacking > 0; lacking -= taken.back().chunks.size()) {
      Group& from = groups_[found[taken.size()]];
      const auto begin =
          from.chunks.end() - static_cast<std::ptrdiff_t>(std::min<uint64_t>(lacking, from.chunks.size()));
      taken.push_back({from.ended, from.claimed, Chunks(begin, from.chunks.end())});
      from.chunks.erase(begin, from.chunks.end());
    }
    return taken;
  }

  void hold(size_t i, Moment claimed, const Chunks& taken) {
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

  // One chunk more for a stay: of two chunks, one is free when it begins but not for all of it, and in the other
  // something ends before that is over. If both were free at some time before, what they held since then changes
  // places, and the other one can be had.
  bool exchange_for(size_t i) {
    const Moment begin = stays_[i].begin, end = stays_[i].end;
    for (size_t a = 0; a < groups_.size(); ++a) {
      if (groups_[a].ended.tick > begin.tick || groups_[a].claimed.tick <= begin.tick) continue;
      for (size_t b = 0; b < groups_.size(); ++b) {
        const bool ends = groups_[b].ended.tick > begin.tick && groups_[b].ended.tick <= groups_[a].claimed.tick;
        if (!ends || groups_[b].claimed.tick < end.tick) continue;
        for (const uint32_t free : groups_[a].chunks) {
          for (const uint32_t held : groups_[b].chunks) {
            if (!exchange(free, held)) continue;
            trade(a, free, b, held, i);
            return true;
          }
        }
      }
    }
    return false;
  }

  // The chunk of the first group ends now where that of the second one did, which goes to a stay.
  void trade(size_t a, uint32_t free, size_t b, uint32_t held, size_t i) {
    const Group later{groups_[b].ended, groups_[a].claimed, {free}};
    const Moment claimed = groups_[b].claimed;
    Chunks &frees = groups_[a].chunks, &helds = groups_[b].chunks;
    frees.erase(std::find(frees.begin(), frees.end(), free));
    helds.erase(std::find(helds.begin(), helds.end(), held));
    groups_.push_back(later);
    hold(i, claimed, {held});
  }

  // What two chunks held since both were free last; the other one is held now. False: they never were.
  bool exchange(uint32_t one, uint32_t other) {
    if (held_[other].empty()) return false;  // it is held since before
    const uint32_t pair[] = {one, other};
    size_t kept[] = {held_[one].size(), held_[other].size()};
    int64_t tick = stays_[held_[other].back()].begin.tick, before = 0;
    do {
      before = tick;
      for (const int which : {0, 1}) {
        const std::vector<size_t>& held = held_[pair[which]];
        while (kept[which] > 0 && stays_[held[kept[which] - 1]].end.tick > tick)
          tick = std::min(tick, stays_[held[--kept[which]]].begin.tick);
        if (kept[which] == 0 && held_until_[pair[which]] > tick) return false;
      }
    } while (tick != before);
    const std::vector<size_t> mine(held_[one].begin() + static_cast<std::ptrdiff_t>(kept[0]), held_[one].end());
    const std::vector<size_t> theirs(held_[other].begin() + static_cast<std::ptrdiff_t>(kept[1]), held_[other].end());
    for (const int which : {0, 1}) {
      const std::vector<size_t>&from = which == 0 ? mine : theirs, &to = which == 0 ? theirs : mine;
      held_[pair[which]].resize(kept[which]);
      held_[pair[which]].insert(held_[pair[which]].end(), to.begin(), to.end());
      for (const size_t stay : from) {
        if (std::find(to.begin(), to.end(), stay) != to.end()) continue;  // it has both
        std::replace(chunks[stay].begin(), chunks[stay].end(), pair[which], pair[1 - which]);
      }
    }
    return true;
  }

  const std::vector<Stay>& stays_;
  std::vector<Group> groups_;
  std::vector<std::vector<size_t>> held_;  // by chunk: the stays that were given it, in their order
  std::vector<int64_t> held_until_;        // by chunk: the end of what was there when the circle began
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
