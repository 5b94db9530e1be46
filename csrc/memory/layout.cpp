#include "memory/layout.h"

#include <algorithm>
#include <tuple>

#include "base/assert.h"
#include "base/error.h"
#include "base/scattered.h"
#include "memory/room.h"

namespace um {

using driver::CUstream;

// ---- what a step takes and gives -----------------------------------------------------------------------------

ChunkRange* Layout::take_for(int64_t key, uint64_t chunks, CUstream first_user) {
  ranges_.end_moment();
  if (!follows_) return ranges_.take(chunks, first_user);
  if (ranges_.released() != released_) forget();
  um::make_room(step_.stays, step_.stays.size() + 1);
  ChunkRange* const range = take(&turns_[place_][key], chunks, first_user);
  if (range == nullptr) return nullptr;
  range->stay = step_.first + step_.stays.size();
  note(static_cast<uint64_t>(key));
  note(chunks);
  double begin = now_;
  for (const Chunk* chunk : range->chunks) begin = std::max(begin, chunk->ended);
  step_.stays.push_back({key, range, true, begin, {chunks, {step_.length.tick++, begin - step_.begin}, {}, {}}});
  UM_ASSERT(check());
  return range;
}

ChunkRange* Layout::take(Turns* turns, uint64_t chunks, CUstream first_user) {
  const size_t turn = turns->next++;
  if (laid_out_ == 0 && unlaid_ <= kMostOldest && ranges_.mapping.costs_nothing()) {
    missed_ += chunks;
    return ranges_.take_oldest(chunks, first_user);
  }
  if (turn >= turns->stays.size() || turns->stays[turn].chunks.size() > chunks) {
    missed_ += chunks;
    return take_again(turns, turn, chunks, first_user);
  }
  Own& own = turns->stays[turn];
  if (own.range != nullptr && own.chunks.size() == chunks && ranges_.take(own.range, first_user)) return own.range;
  const auto in_use = [](const Chunk* chunk) { return !chunk->free; };
  missed_ += static_cast<uint64_t>(std::count_if(own.chunks.begin(), own.chunks.end(), in_use));
  // A steady step misses the same chunks each time, so the chunks taken last time are as good now, and mapped.
  const bool again = own.instead.size() == chunks && std::none_of(own.instead.begin(), own.instead.end(), in_use);
  if (!again) own.instead = instead(own, chunks);
  return ranges_.take(chunks, first_user, own.instead);
}

// Takes the chunks of this turn in the step before, whose range is mapped.
ChunkRange* Layout::take_again(Turns* turns, size_t turn, uint64_t chunks, CUstream first_user) {
  if (ranges_.mapping.costs_nothing()) return ranges_.take(chunks, first_user);
  if (turn >= turns->last.size()) turns->last.resize(turn + 1);
  std::vector<Chunk*>& last = turns->last[turn];
  const auto is_free = [](const Chunk* chunk) { return chunk->free; };
  const bool again = last.size() == chunks && std::all_of(last.begin(), last.end(), is_free);
  ChunkRange* const range = again ? ranges_.take(chunks, first_user, last) : ranges_.take(chunks, first_user);
  if (range != nullptr) last = range->chunks;
  return range;
}

// Returns chunks for a missed stay: its own free chunks, then other free ones. These are ordered by how long the device
// waits for them, then by how long they overlap with a later stay of the layout, then by when they became idle, and
// then by when they were given back. Nothing that happened before steps like this one decides.
std::vector<Chunk*> Layout::instead(const Own& own, uint64_t chunks) const {
  struct Other {
    double wait;
    int64_t overlap;
    Chunk* chunk;
    bool operator<(const Other& other) const {
      return std::tie(wait, overlap, chunk->ended, chunk->freed, chunk->place) <
             std::tie(other.wait, other.overlap, other.chunk->ended, other.chunk->freed, other.chunk->place);
    }
  };
  const auto is_own = [&](Chunk* chunk) {
    return std::find(own.chunks.begin(), own.chunks.end(), chunk) != own.chunks.end();
  };
  std::vector<Chunk*> found;
  for (Chunk* chunk : own.chunks) {
    if (chunk->free) found.push_back(chunk);
  }
  const int64_t now_tick = place_ * before_.length.tick + step_.length.tick;
  std::vector<Other> others;
  for (uint32_t number = 0; number < begins_.size() && found.size() < chunks; ++number) {
    Chunk* const chunk = ranges_.chunks.at(number);
    if (chunk == nullptr || !chunk->free || is_own(chunk)) continue;
    const std::vector<int64_t>& begins = begins_[number];
    const auto next = std::upper_bound(begins.begin(), begins.end(), now_tick);
    const int64_t later = begins.empty() ? own.end_tick : begins.front() + steps_of_circle_ * before_.length.tick;
    const int64_t wanted = next != begins.end() ? *next : later;
    others.push_back({std::max(chunk->ended - step_.begin - own.begin_clock, 0.0),
                      std::max<int64_t>(own.end_tick - wanted, 0), chunk});
  }
  std::sort(others.begin(), others.end());
  for (size_t i = 0; i < others.size() && found.size() < chunks; ++i) found.push_back(others[i].chunk);
  return found;
}

std::vector<const ChunkRange*> Layout::in_the_way_of(int64_t key) {
  std::vector<const ChunkRange*> holders;
  const auto turns = turns_[place_].find(key);
  if (!follows_ || ranges_.released() != released_ || turns == turns_[place_].end()) return holders;
  if (turns->second.next >= turns->second.stays.size()) return holders;
  for (const Chunk* chunk : turns->second.stays[turns->second.next].chunks) {
    const ChunkRange* const holder = chunk->holder;
    if (holder != nullptr && std::find(holders.begin(), holders.end(), holder) == holders.end())
      holders.push_back(holder);
  }
  return holders;
}

// A stay that was marked as departing has ended already.
void Layout::give(ChunkRange* range, Fences::Fence last_use) noexcept {
  if (Seen* const stay = seen(range)) {
    if (stay->open) end(range, now_);
    stay->range = nullptr;
  }
  ranges_.give(range, last_use);
  UM_ASSERT(check());
}

void Layout::arrives(const ChunkRange* range, uint64_t bytes) noexcept {
  Step* step = nullptr;
  Seen* const stay = seen(range, &step);
  if (stay == nullptr) return;
  double ended = 0;
  for (const Chunk* chunk : range->chunks) ended = std::max(ended, chunk->ended);
  stay->stay.begin.clock = copy(false, bytes, ended) - step->begin;
  stay->arrived = links_[0].until;
  UM_ASSERT(check());
}

void Layout::op(double duration) {
  ranges_.end_moment();
  now_ += duration;
  ops_ += duration;
}

void Layout::awaits(const ChunkRange* range) noexcept {
  if (range == nullptr) return;  // it is used on the host
  if (const Seen* const stay = seen(range)) now_ = std::max(now_, stay->arrived);
}

void Layout::leaves(const ChunkRange* range, uint64_t bytes) noexcept {
  if (bytes > 0) copy(true, bytes, now_);
  end(range, bytes > 0 ? links_[1].until : now_);
  UM_ASSERT(check());
}

void Layout::cancel_departure(const ChunkRange* range) noexcept {
  Seen* const stay = seen(range);
  if (stay == nullptr) return;
  stay->open = true;
  note(range->stay - step_.first);
  UM_ASSERT(check());
}

void Layout::end(const ChunkRange* range, double clock) noexcept {
  if (!follows_) return;
  Step* step = nullptr;
  if (Seen* const stay = seen(range, &step)) {
    stay->open = false;
    for (Chunk* chunk : range->chunks) chunk->ended = clock;
    stay->stay.end = {step_.length.tick++ + (step == &before_ ? before_.length.tick : 0), clock - step->begin};
    step_.digest += scattered(range->stay - step_.first);  // the same in whichever order several end at once
  }
}

// Returns when the copy begins: after the earlier copies of its direction.
double Layout::copy(bool to_host, uint64_t bytes, double earliest) noexcept {
  Link& link = links_[to_host ? 1 : 0];
  const double begin = std::max(link.until, earliest);
  link.until = begin + static_cast<double>(bytes) * link.pace;
  link.bytes += static_cast<double>(bytes);
  return begin;
}

Layout::Seen* Layout::seen(const ChunkRange* range, Step** step) noexcept {
  for (Step* each : {&step_, &before_}) {
    if (step != nullptr) *step = each;
    const uint64_t index = range->stay - each->first;
    if (range->stay >= each->first && index < each->stays.size()) return &each->stays[index];
  }
  return nullptr;
}

// ---- steps ---------------------------------------------------------------------------------------------------

void Layout::begin_step() {
  ranges_.end_moment();
  step_.length.clock = now_ - step_.begin;
  const bool repeats = !step_.stays.empty() && step_.digest == before_.digest &&
                       step_.stays.size() == before_.stays.size() && step_.length.tick == before_.length.tick;
  const bool due = steps_ >= next_try_ && (laid_out_ == 0 || missed_ * kStepsToPayOff > laid_out_);
  astray_ = due ? astray_ + 1 : 0;
  place_ = (place_ + 1) % steps_of_circle_;
  if (astray_ > 0 && repeats) make();
  if (astray_ == kMostAstray) forget();
  for (Link& link : links_) link = {link.until, 0, link.bytes > 0 ? 2 * ops_ / link.bytes : 0};
  ops_ = 0;
  for (auto& [key, turns] : turns_[place_]) turns.next = 0;
  const uint64_t first = step_.first + step_.stays.size();
  std::swap(step_, before_);
  step_.stays.clear();
  step_ = {first, now_, {}, 0, std::move(step_.stays)};
  missed_ = 0;
  ++steps_;
  unlaid_ = laid_out_ == 0 ? unlaid_ + 1 : 0;
  follows_ = true;
  UM_ASSERT(check());
}

void Layout::stop() noexcept {
  forget();
  step_ = {step_.first + step_.stays.size(), 0, {}, 0, {}};
  before_ = {};
  now_ = ops_ = 0;
  for (Link& link : links_) link = {};
  for (uint64_t number = 0; Chunk* const chunk = ranges_.chunks.at(static_cast<uint32_t>(number)); ++number) {
    chunk->ended = 0;
    chunk->place = 0;
  }
  layouts_ = steps_ = unlaid_ = next_try_ = astray_ = spare_ = spare_raises_ = 0;
  follows_ = false;
  UM_ASSERT(check());
}

void Layout::forget() noexcept {
  ranges_.keep_none();
  for (auto& turns : turns_) turns.clear();
  begins_.clear();
  laid_out_ = 0;
  released_ = ranges_.released();
}

// ---- a new layout --------------------------------------------------------------------------------------------

// Keeps more chunks free from now on if the layout lacks some. Returns whether it does; the next steps then show the
// stays that follow from that.
bool Layout::raise_spare(const std::vector<Stay>& stays) {
  uint64_t lacking = 0;
  for (const Stay& stay : stays) lacking += stay.count - stay.chunks.size();
  if (lacking == 0 || spare_raises_ == kMostSpareRaises) return false;
  ++spare_raises_;
  spare_ += lacking;
  next_try_ = steps_ + 2;
  return true;
}

void Layout::make() {
  forget();
  astray_ = 0;
  const std::vector<uint32_t> numbers = order();
  std::vector<Stay> stays = laid_out(1, numbers), longer = laid_out(kMostSteps, numbers);
  const auto chunks = [](const std::vector<Stay>& all) {
    uint64_t sum = 0;
    for (const Stay& each : all) sum += each.chunks.size();
    return sum;
  };
  steps_of_circle_ = chunks(longer) > chunks(stays) * kMostSteps ? kMostSteps : 1;
  if (steps_of_circle_ > 1) stays.swap(longer);
  if (raise_spare(stays)) return;
  next_try_ = steps_ + (uint64_t{1} << std::min<uint64_t>(++layouts_, 32));  // each twice as long after the one before
  begins_.resize(ranges_.chunks.pool.most());
  try {
    place_ = 0;
    for (size_t i = 0; i < stays.size(); ++i) {
      const Seen& seen = step_.stays[i % step_.stays.size()];
      const bool whole = stays[i].chunks.size() == seen.stay.count;
      Own own{whole ? ranges_.map(stays[i].chunks) : nullptr, seen.stay.begin.clock, stays[i].end.tick, {}, {}};
      if (own.range != nullptr) ranges_.keep(own.range);
      for (const uint32_t number : stays[i].chunks) {
        if (Chunk* const chunk = ranges_.chunks.at(number)) own.chunks.push_back(chunk);
        begins_[number].push_back(stays[i].begin.tick);
      }
      laid_out_ += own.chunks.size();
      turns_[i / step_.stays.size()][seen.key].stays.push_back(std::move(own));
    }
  } catch (const Error&) {  // the driver maps no more
    forget();
  }
  for (uint64_t place = 0; place < numbers.size(); ++place) {
    if (Chunk* const chunk = ranges_.chunks.at(numbers[place])) chunk->place = place;
  }
}

// Returns the stays of a circle of so many steps with their chunks. Stays that span the circle's edge keep the chunks
// that they have now. Chunks are numbered by order() meanwhile, so the layout does not depend on earlier steps.
std::vector<Stay> Layout::laid_out(int64_t steps, const std::vector<uint32_t>& numbers) {
  std::vector<uint32_t> places(numbers.size());
  for (uint32_t place = 0; place < numbers.size(); ++place) places[numbers[place]] = place;
  const auto rename = [](std::vector<uint32_t>* chunks, const std::vector<uint32_t>& names) {
    for (uint32_t& chunk : *chunks) chunk = names[chunk];
    std::sort(chunks->begin(), chunks->end());
  };
  std::vector<uint32_t> others;
  std::vector<Stay> all, stays = closed(steps * step_.length.tick, &others);
  rename(&others, places);
  for (Stay& stay : stays) rename(&stay.chunks, places);
  for (int64_t step = 0; step < steps; ++step) {
    for (const Stay& each : stays) {
      all.push_back(each);
      for (Moment* moment : {&all.back().begin, &all.back().end}) {
        moment->tick += step * step_.length.tick;
        moment->clock += static_cast<double>(step) * step_.length.clock;
      }
      if (step + 1 < steps) all.back().chunks.clear();
    }
  }
  const Moment length{steps * step_.length.tick, static_cast<double>(steps) * step_.length.clock};
  lay_out(&all, length, static_cast<uint32_t>(ranges_.chunks.pool.most()), others);
  for (Stay& stay : all) rename(&stay.chunks, numbers);
  return all;
}

// Returns the numbers of all chunks: first the held ones, by their stay; then the ones that do not exist yet; then the
// free ones, the most recently freed first. A stay is given the last ones of this list first. Chunks that are alike are
// ordered as in the layout before.
std::vector<uint32_t> Layout::order() const {
  std::vector<std::tuple<int, uint64_t, uint64_t, uint32_t>> keys;
  for (uint32_t number = 0; number < ranges_.chunks.pool.most(); ++number) {
    const Chunk* const chunk = ranges_.chunks.at(number);
    if (chunk == nullptr) {
      keys.emplace_back(1, 0, 0, number);
    } else if (chunk->holder != nullptr) {
      keys.emplace_back(0, chunk->holder->stay, chunk->place, number);
    } else {
      keys.emplace_back(2, ~chunk->freed, chunk->place, number);
    }
  }
  std::sort(keys.begin(), keys.end());
  std::vector<uint32_t> numbers;
  numbers.reserve(keys.size());
  for (const auto& key : keys) numbers.push_back(std::get<uint32_t>(key));
  return numbers;
}

// Returns the stays of the step that ends. A stay that lasts beyond the step, or whose departure was cancelled, ends
// when the same stay of the step before did. `others` gets the chunks that are held for longer or by other holders.
std::vector<Stay> Layout::closed(int64_t longest, std::vector<uint32_t>* others) {
  std::vector<Stay> stays;
  std::vector<bool> spanning(ranges_.chunks.pool.most());
  for (size_t i = 0; i < step_.stays.size(); ++i) {
    const Seen &seen = step_.stays[i], &before = before_.stays[i];
    stays.push_back(seen.stay);
    const bool resumed = seen.range != nullptr && before.stay.end.tick > before_.length.tick;
    if (seen.range == nullptr || (!seen.open && !resumed)) continue;
    Stay& stay = stays.back();
    stay.end = before.stay.end;
    const auto& held = seen.range->chunks;
    const bool steady =
        !before.open && stay.end.tick - stay.begin.tick <= longest &&
        std::all_of(held.begin(), held.end(), [&](const Chunk* c) { return c->number < ranges_.chunks.pool.most(); });
    if (!steady) stay.count = 0;
    for (size_t c = 0; steady && c < held.size(); ++c) {
      stay.chunks.push_back(static_cast<uint32_t>(held[c]->number));
      spanning[held[c]->number] = true;
    }
  }
  for (uint32_t chunk = 0; chunk < ranges_.chunks.pool.most(); ++chunk) {
    const Chunk* const made = ranges_.chunks.at(chunk);
    if (made == nullptr || made->holder == nullptr || spanning[chunk]) continue;
    const Seen* const stay = seen(made->holder);
    if (stay == nullptr || stay->open) others->push_back(chunk);
  }
  return stays;
}

}  // namespace um
