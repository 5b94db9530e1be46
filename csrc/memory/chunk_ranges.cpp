#include "memory/chunk_ranges.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "base/on_error.h"
#include "memory/room.h"

namespace um {

using driver::CUstream;

// ---- taking and giving ---------------------------------------------------------------------------------------

ChunkRange* ChunkRanges::take(uint64_t count, CUstream first_user, const Chunks::List& wanted) {
  end_moment();
  if (!chunks.fits(count)) return nullptr;
  ChunkRange* range = wanted.empty() ? idle_range(count) : nullptr;
  if (range == nullptr) {
    Chunks::List found = chunks.find_free(count, wanted);
    if (found.size() < count) return nullptr;
    range = make(std::move(found));
  }
  hold(range, first_user);
  return range;
}

ChunkRange* ChunkRanges::take_oldest(uint64_t count, CUstream first_user) {
  end_moment();
  if (!chunks.fits(count)) return nullptr;
  Chunks::List found = chunks.find_free(count, {});
  if (found.size() < count) return nullptr;
  ChunkRange* const range = make(std::move(found));
  return take(range, first_user) ? range : nullptr;
}

bool ChunkRanges::take(ChunkRange* range, CUstream first_user) {
  end_moment();
  if (range->taken > 0 || !chunks.fits(range->chunks.size()) || !mapped(range)) return false;
  hold(range, first_user);
  return true;
}

// Returns the range whose chunks are all free and were given back longest ago. Skips ranges that the helper may still
// map.
ChunkRange* ChunkRanges::idle_range(uint64_t count) const {
  const auto found = by_size_.find(count);
  if (found == by_size_.end()) return nullptr;
  const auto freed = [](const ChunkRange* range) {
    uint64_t last = 0;
    for (const Chunk* chunk : range->chunks) last = std::max(last, chunk->freed);
    return last;
  };
  ChunkRange* oldest = nullptr;
  uint64_t oldest_freed = 0;
  for (ChunkRange* each : found->second) {
    if (each->taken > 0 || each->mapping != 0) continue;
    const uint64_t each_freed = freed(each);
    if (oldest != nullptr && each_freed >= oldest_freed) continue;
    oldest = each;
    oldest_freed = each_freed;
  }
  return oldest;
}

// The fences are kept after the first user has been ordered, because other streams are not ordered by that.
void ChunkRanges::hold(ChunkRange* range, CUstream first_user) {
  Fences::Fence done = 0;
  for (const Chunk* chunk : range->chunks) {
    if (chunk->last_use != done) fences_.order(first_user, chunk->last_use, Wait::place_reused);
    done = chunk->last_use;
  }
  mapping.show(range, RawAccess::write);
  for (Chunk* chunk : range->chunks) {
    chunks.unlink(chunk);
    chunk->holder = range;
    for (ChunkRange* each : chunk->ranges) ++each->taken;
  }
  range->held = true;
  range->since = ++takings_;
  range->stay = 0;
  chunks.taken.add(range->chunks.size());
  UM_ASSERT(check(*range) && check());
}

void ChunkRanges::give(ChunkRange* range, Fences::Fence last_use) noexcept {
  for (Chunk* chunk : range->chunks) {
    if (last_use != 0) replace(&chunk->last_use, last_use);
    chunk->holder = nullptr;
    for (ChunkRange* each : chunk->ranges) --each->taken;
  }
  if (last_use != 0) replace(&range->last_use, last_use);
  range->held = false;
  given_at_once_.push_back(range);  // make() has reserved the capacity
  range->given = chunks.put_back(range->chunks);
  chunks.taken.subtract(range->chunks.size());
  UM_ASSERT(check(*range));
  shed();
  UM_ASSERT(check());
}

void ChunkRanges::end_moment() noexcept {
  const auto order = [](const ChunkRange* a, const ChunkRange* b) { return a->since < b->since; };
  if (!std::is_sorted(given_at_once_.begin(), given_at_once_.end(), order)) {
    std::sort(given_at_once_.begin(), given_at_once_.end(), order);
    for (ChunkRange* range : given_at_once_) {
      for (Chunk* chunk : range->chunks) chunks.unlink(chunk);
      range->given = chunks.put_back(range->chunks);
    }
  }
  given_at_once_.clear();
  UM_ASSERT(check());
}

void ChunkRanges::replace(Fences::Fence* fence, Fences::Fence by) noexcept {
  fences_.retain(by);
  fences_.replace(fence, by);
}

// ---- ranges --------------------------------------------------------------------------------------------------

ChunkRange* ChunkRanges::map(const std::vector<uint32_t>& numbers) {
  const uint32_t most = numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end());
  while (chunks.at(most) == nullptr) {
    if (chunks.create() == nullptr) return nullptr;
  }
  Chunks::List named;
  named.reserve(numbers.size());
  for (const uint32_t number : numbers) named.push_back(chunks.at(number));
  return make(std::move(named), true);
}

ChunkRange* ChunkRanges::make(Chunks::List over, bool ahead) {
  if (const auto same = ranges_.find(over); same != ranges_.end() && (ahead || mapped(same->second.get())))
    return same->second.get();
  make_place(over.size());
  auto range = std::make_unique<ChunkRange>();
  range->chunks = over;
  auto& alike = by_size_[over.size()];
  make_room(alike, alike.size() + 1);
  make_room(given_at_once_, ranges_.size() + 1);
  const auto entered = ranges_.emplace(std::move(over), nullptr).first;
  const OnError undo([&] { ranges_.erase(entered); });
  enter(range.get(), ahead);
  alike.push_back(range.get());
  entered->second = std::move(range);
  UM_ASSERT(check(*entered->second) && check());
  return entered->second.get();
}

void ChunkRanges::enter(ChunkRange* range, bool ahead) {
  for (Chunk* chunk : range->chunks) make_room(chunk->ranges, chunk->ranges.size() + 1);
  mapping.open(range, ahead);
  for (Chunk* chunk : range->chunks) {
    range->taken += chunk->free ? 0 : 1;
    chunk->ranges.push_back(range);
  }
}

ChunkRange* ChunkRanges::take_part(Chunk* chunk) {
  const auto idle = [](const ChunkRange* each) { return each->of_part && !each->held; };
  const auto found = std::find_if(chunk->ranges.begin(), chunk->ranges.end(), idle);
  ChunkRange* range = found != chunk->ranges.end() ? *found : nullptr;
  if (range == nullptr) {
    make_place(1);
    auto made = std::make_unique<ChunkRange>();
    made->chunks = {chunk};
    made->of_part = true;
    make_room(parts_, parts_.size() + 1);
    enter(made.get(), false);
    range = made.get();
    parts_.push_back(std::move(made));
  }
  mapping.show(range, RawAccess::write);
  range->held = true;
  UM_ASSERT(check(*range) && check());
  return range;
}

void ChunkRanges::give_part(ChunkRange* range, Fences::Fence last_use) noexcept {
  if (last_use != 0) replace(&range->last_use, last_use);
  range->held = false;
  range->given = chunks.given_back();
  UM_ASSERT(check(*range) && check());
}

// Also maps a range that the helper has not begun to map. If the driver refuses, the range ends.
bool ChunkRanges::mapped(ChunkRange* range) noexcept {
  if (mapping.finish_mapping(range)) return true;
  static_cast<void>(retire(range));
  return false;
}

void ChunkRanges::keep(ChunkRange* range) noexcept {
  if (!range->kept) kept_ += range->chunks.size();
  range->kept = true;
  UM_ASSERT(check());
}

void ChunkRanges::keep_none() noexcept {
  kept_ = 0;
  for (const auto& [numbers, each] : ranges_) each->kept = false;
  UM_ASSERT(check());
}

// Makes page tables available for `count` more chunks: ends the unused ranges that were given back longest ago. The
// limit may be exceeded while no range can end.
void ChunkRanges::make_place(uint64_t count) noexcept {
  while (mapping.mapped() - kept_ + count > kMostRangesOfChunk * chunks.pool.budget()) {
    ChunkRange* oldest = nullptr;
    const auto consider = [&](ChunkRange* each) {
      if (!each->held && !each->kept && (oldest == nullptr || each->given < oldest->given)) oldest = each;
    };
    for (const auto& [numbers, each] : ranges_) consider(each.get());
    for (const auto& each : parts_) consider(each.get());
    if (oldest == nullptr || !retire(oldest)) return;
  }
}

// ---- back to the driver --------------------------------------------------------------------------------------

// Ends a range. Returns false if it is held, work on it may still run, or the driver refuses.
bool ChunkRanges::retire(ChunkRange* range) noexcept {
  if (range->held || range->handed_out) return false;
  if (!fences_.surely_passed(range->last_use, Wait::chunk_ready)) return false;
  if (!mapping.close(range)) return false;
  drop(range);
  return true;
}

Block* ChunkRanges::detach(ChunkRange* range) noexcept {
  if (range->held || !fences_.surely_passed(range->last_use, Wait::chunk_ready)) return nullptr;
  if (!mapping.unmap(range)) return nullptr;
  Block* const room = range->room;
  drop(range);
  return room;
}

// Removes a range that has ended from all tables.
void ChunkRanges::drop(ChunkRange* range) noexcept {
  for (Chunk* chunk : range->chunks) chunk->ranges.erase(std::find(chunk->ranges.begin(), chunk->ranges.end(), range));
  fences_.replace(&range->last_use);
  if (range->of_part) {
    const auto is_it = [&](const auto& each) { return each.get() == range; };
    parts_.erase(std::find_if(parts_.begin(), parts_.end(), is_it));
    UM_ASSERT(check());
    return;
  }
  auto& alike = by_size_[range->chunks.size()];
  alike.erase(std::find(alike.begin(), alike.end(), range));
  given_at_once_.erase(std::remove(given_at_once_.begin(), given_at_once_.end(), range), given_at_once_.end());
  if (range->kept) {
    ++released_;
    kept_ -= range->chunks.size();
  }
  ranges_.erase(ranges_.find(range->chunks));
  UM_ASSERT(check());
}

bool ChunkRanges::release(Chunk* chunk) noexcept {
  while (!chunk->ranges.empty()) {
    if (!retire(chunk->ranges.back())) return false;
  }
  if (!fences_.surely_passed(chunk->last_use, Wait::chunk_ready)) return false;
  fences_.replace(&chunk->last_use);
  chunks.end(chunk);
  ++released_;
  UM_ASSERT(check());
  return true;
}

// Waits on the host. This also works if no event stands for the last use, and then the fence need not be asked again.
void ChunkRanges::end(Fences::Fence* last_use) {
  fences_.wait(*last_use, Wait::chunk_taken);
  if (!left_out(Wait::chunk_taken)) fences_.replace(last_use);
}

void ChunkRanges::set_budget(uint64_t count) {
  chunks.pool.set_budget(count);
  shed();
}

void ChunkRanges::shrink_to_budget() {
  for (Chunk* chunk = chunks.oldest(); chunk != nullptr && beyond_budget();) {
    Chunk* const newer = chunk->newer;
    end(&chunk->last_use);
    for (ChunkRange* range : chunk->ranges) end(&range->last_use);
    if (!release(chunk)) break;
    chunk = newer;
  }
  shed();
}

void ChunkRanges::shed() noexcept {
  for (Chunk* chunk = chunks.oldest(); chunk != nullptr && beyond_budget();) {
    Chunk* const newer = chunk->newer;
    if (!release(chunk)) break;
    chunk = newer;
  }
  chunks.pool.shed();
}

// Waits for the work that still uses the chunks.
bool ChunkRanges::give_back() noexcept {
  try {
    for (const auto& [over, range] : ranges_) {
      if (!range->held) end(&range->last_use);
    }
    for (const auto& range : parts_) {
      if (!range->held) end(&range->last_use);
    }
    for (Chunk* chunk = chunks.oldest(); chunk != nullptr; chunk = chunk->newer) end(&chunk->last_use);
  } catch (const std::exception&) {
    return false;
  }
  while (chunks.oldest() != nullptr && release(chunks.oldest())) {
  }
  return chunks.pool.give_back() && chunks.empty();
}

// ---- invariants ----------------------------------------------------------------------------------------------

// A held range holds all of its chunks, a part's range none, and each knows how many of its chunks are taken.
bool ChunkRanges::check(const ChunkRange& range) const {
  uint64_t taken = 0;
  for (const Chunk* chunk : range.chunks) {
    taken += chunk->free ? 0 : 1;
    UM_ASSERT(chunk->free == (chunk->holder == nullptr));
    UM_ASSERT((chunk->holder == &range) == (range.held && !range.of_part));
    UM_ASSERT(std::count(chunk->ranges.begin(), chunk->ranges.end(), &range) == 1);
  }
  UM_ASSERT(range.taken == taken);
  if (range.of_part) {
    UM_ASSERT(range.chunks.size() == 1 && !range.kept);
    UM_ASSERT(!range.held || taken == 1);
    return true;
  }
  const auto found = ranges_.find(range.chunks);
  const auto alike = by_size_.find(range.chunks.size());
  UM_ASSERT(found != ranges_.end() && found->second.get() == &range);
  UM_ASSERT(alike != by_size_.end() && std::count(alike->second.begin(), alike->second.end(), &range) == 1);
  return true;
}

// Chunks are numbered and linked, and each is taken exactly when one held range has it.
bool ChunkRanges::check() const {
  UM_ASSERT(chunks.check());
  if (chunks.at(kMostChecked) != nullptr || ranges() > kMostChecked) return true;
  uint64_t held = 0, kept = 0;
  for (const auto& [numbers, range] : ranges_) {
    UM_ASSERT(check(*range));
    held += range->held ? range->chunks.size() : 0;
    kept += range->kept ? range->chunks.size() : 0;
  }
  for (const auto& range : parts_) UM_ASSERT(range->of_part && check(*range));
  UM_ASSERT(held == chunks.taken.now);
  UM_ASSERT(kept == kept_);
  for (const ChunkRange* range : given_at_once_) UM_ASSERT(!range->held);
  return true;
}

}  // namespace um
