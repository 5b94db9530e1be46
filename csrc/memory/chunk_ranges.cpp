#include "memory/chunk_ranges.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/physical.h"
#include "memory/places.h"
#include "memory/room.h"

namespace um {

using driver::CUDA_SUCCESS;
using driver::CUstream;

// ---- taking and giving ---------------------------------------------------------------------------------------

ChunkRange* ChunkRanges::take(uint64_t chunks, CUstream first_user, const Chunks& wanted) {
  end_moment();
  if (taken_.now + chunks > pool_.budget()) return nullptr;
  ChunkRange* range = wanted.empty() ? idle_range(chunks) : nullptr;
  if (range == nullptr) {
    Chunks found = free_chunks(chunks, wanted);
    if (found.size() < chunks) return nullptr;
    range = make(std::move(found));
  }
  order(*range, first_user);
  show(range, RawAccess::write);
  hold(range);
  return range;
}

ChunkRange* ChunkRanges::take_oldest(uint64_t chunks, CUstream first_user) {
  end_moment();
  if (taken_.now + chunks > pool_.budget()) return nullptr;
  Chunks found = free_chunks(chunks, {});
  if (found.size() < chunks) return nullptr;
  ChunkRange* const range = make(std::move(found));
  return take(range, first_user) ? range : nullptr;
}

bool ChunkRanges::take(ChunkRange* range, CUstream first_user) {
  end_moment();
  if (range->taken > 0 || taken_.now + range->chunks.size() > pool_.budget() || !mapped(range)) return false;
  order(*range, first_user);
  show(range, RawAccess::write);
  hold(range);
  return true;
}

// All of its chunks are free, and have been for longest. Not one that the helper may still map.
ChunkRange* ChunkRanges::idle_range(uint64_t chunks) const {
  const auto found = by_size_.find(chunks);
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

// The wanted ones, new ones as long as there may be more, then those that were given back longest ago: fewer where
// there are no more.
ChunkRanges::Chunks ChunkRanges::free_chunks(uint64_t count, const Chunks& wanted) {
  const auto by_number = [](const Chunk* a, const Chunk* b) { return a->number < b->number; };
  Chunks found;
  found.reserve(count);
  for (Chunk* chunk : wanted) {
    if (chunk->free && found.size() < count) found.push_back(chunk);
  }
  std::sort(found.begin(), found.end(), by_number);
  const Chunks own = found;
  const Chunk* first_made = nullptr;  // free since now: after all others
  while (found.size() < count) {
    Chunk* const chunk = create();
    if (chunk == nullptr) break;
    if (first_made == nullptr) first_made = chunk;
    found.push_back(chunk);
  }
  for (Chunk* chunk = oldest_; chunk != first_made && found.size() < count; chunk = chunk->newer) {
    if (!std::binary_search(own.begin(), own.end(), chunk, by_number)) found.push_back(chunk);
  }
  std::sort(found.begin(), found.end(), by_number);  // of the same chunks there is one range
  return found;
}

// What had the chunks before comes before what has them now. The fences are kept: other streams know nothing of that.
void ChunkRanges::order(const ChunkRange& range, CUstream first_user) {
  Fences::Fence done = 0;
  for (const Chunk* chunk : range.chunks) {
    if (chunk->last_use != done) fences_.order(first_user, chunk->last_use, Wait::place_reused);
    done = chunk->last_use;
  }
}

void ChunkRanges::hold(ChunkRange* range) noexcept {
  for (Chunk* chunk : range->chunks) {
    unlink(chunk);
    chunk->holder = range;
    for (ChunkRange* each : chunk->ranges) ++each->taken;
  }
  range->held = true;
  range->since = ++takings_;
  range->stay = 0;
  taken_.add(range->chunks.size());
}

void ChunkRanges::give(ChunkRange* range, Fences::Fence last_use) noexcept {
  for (Chunk* chunk : range->chunks) {
    if (last_use != 0) replace(&chunk->last_use, last_use);
    chunk->holder = nullptr;
    for (ChunkRange* each : chunk->ranges) --each->taken;
  }
  if (last_use != 0) replace(&range->last_use, last_use);
  range->held = false;
  given_at_once_.push_back(range);  // make() has made room
  link(range);
  taken_.subtract(range->chunks.size());
  shed();
}

void ChunkRanges::end_moment() noexcept {
  const auto order = [](const ChunkRange* a, const ChunkRange* b) { return a->since < b->since; };
  if (!std::is_sorted(given_at_once_.begin(), given_at_once_.end(), order)) {
    std::sort(given_at_once_.begin(), given_at_once_.end(), order);
    for (ChunkRange* range : given_at_once_) {
      for (Chunk* chunk : range->chunks) unlink(chunk);
      link(range);
    }
  }
  given_at_once_.clear();
}

void ChunkRanges::replace(Fences::Fence* fence, Fences::Fence by) noexcept {
  fences_.retain(by);
  fences_.release(*fence);
  *fence = by;
}

void ChunkRanges::link(ChunkRange* range) noexcept {
  range->given = ++given_;
  for (Chunk* chunk : range->chunks) link(chunk);
}

void ChunkRanges::link(Chunk* chunk) noexcept {
  chunk->free = true;
  chunk->freed = given_;
  chunk->newer = nullptr;
  chunk->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = chunk;
  newest_ = chunk;
}

void ChunkRanges::unlink(Chunk* chunk) noexcept {
  chunk->free = false;
  (chunk->older != nullptr ? chunk->older->newer : oldest_) = chunk->newer;
  (chunk->newer != nullptr ? chunk->newer->older : newest_) = chunk->older;
}

// ---- mapping -------------------------------------------------------------------------------------------------

Chunk* ChunkRanges::create() {
  chunks_.reserve(chunks_.size() + 1);
  auto chunk = std::make_unique<Chunk>();
  if (!pool_.create()) return nullptr;
  chunk->handle = pool_.take();
  chunk->number = chunks_.size();
  link(chunk.get());
  chunks_.push_back(std::move(chunk));
  return chunks_.back().get();
}

ChunkRange* ChunkRanges::map(const std::vector<uint32_t>& chunks) {
  const uint32_t most = chunks.empty() ? 0 : *std::max_element(chunks.begin(), chunks.end());
  while (chunks_.size() <= most && create() != nullptr) {
  }
  if (chunks_.size() <= most) return nullptr;
  Chunks named;
  named.reserve(chunks.size());
  for (const uint32_t number : chunks) named.push_back(chunks_[number].get());
  return make(std::move(named), true);
}

ChunkRange* ChunkRanges::make(Chunks chunks, bool ahead) {
  if (const auto same = ranges_.find(chunks); same != ranges_.end() && (ahead || mapped(same->second.get())))
    return same->second.get();
  make_place(chunks.size());
  auto range = std::make_unique<ChunkRange>();
  range->chunks = chunks;
  auto& alike = by_size_[chunks.size()];
  um::make_room(alike, alike.size() + 1);
  um::make_room(given_at_once_, ranges_.size() + 1);
  for (Chunk* chunk : chunks) um::make_room(chunk->ranges, chunk->ranges.size() + 1);
  const auto entered = ranges_.emplace(std::move(chunks), nullptr).first;
  const OnError undo([&] { ranges_.erase(entered); });
  range->room = rooms_.allocate(range->chunks.size() * chunk_bytes_);
  const OnError undo_room([&] { rooms_.free(range->room, true); });
  range->address = range->room->address;
  park(range->room);
  if (ahead) {
    range->mapping = backend_.helper->ask([this, to = range.get()] {
      try {
        map_all(*to);
      } catch (const Error&) {
        to->refused = true;
      }
    });
  } else {
    map_all(*range);
  }
  for (Chunk* chunk : range->chunks) {
    range->taken += chunk->free ? 0 : 1;
    chunk->ranges.push_back(range.get());
  }
  mapped_ += range->chunks.size();
  alike.push_back(range.get());
  entered->second = std::move(range);
  return entered->second.get();
}

// What the helper has not begun to map is mapped now. False, and the range is gone, where the driver refused.
bool ChunkRanges::mapped(ChunkRange* range) noexcept {
  backend_.helper->settle(std::exchange(range->mapping, 0));
  if (!range->refused) return true;
  static_cast<void>(retire(range));
  return false;
}

void ChunkRanges::keep_none() noexcept {
  for (const auto& [numbers, each] : ranges_) each->kept = false;
}

// Page tables for so many more: of what nobody has, what was given back longest ago ends. There may be more than the
// limit as long as nothing can end.
void ChunkRanges::make_place(uint64_t chunks) noexcept {
  while (mapped_ + chunks > kMostRangesOfChunk * pool_.budget()) {
    ChunkRange* oldest = nullptr;
    for (const auto& [numbers, each] : ranges_) {
      if (!each->held && !each->kept && (oldest == nullptr || each->given < oldest->given)) oldest = each.get();
    }
    if (oldest == nullptr || !retire(oldest)) return;
  }
}

void ChunkRanges::map_all(const ChunkRange& range) {
  uint64_t at = range.address;
  const OnError undo([&] {
    for (uint64_t done = range.address; done < at; done += chunk_bytes_)
      static_cast<void>(backend_.call().mem_unmap(done, chunk_bytes_));
  });
  for (const Chunk* chunk : range.chunks) {
    backend_.check(backend_.call().mem_map(at, chunk_bytes_, 0, chunk->handle, 0), "mapping a chunk");
    at += chunk_bytes_;
  }
  allow(range, true);
}

void ChunkRanges::allow(const ChunkRange& range, bool write) {
  const driver::CUmemAccessDesc access{location_of(backend_), write ? driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                    : driver::CU_MEM_ACCESS_FLAGS_PROT_READ};
  backend_.check(backend_.call().mem_set_access(range.address, range.chunks.size() * chunk_bytes_, &access, 1),
                 "allowing access to chunks");
}

void ChunkRanges::veil(const ChunkRange& range, bool veiled) {
  if (backend_.hooks->veil(backend_.ordinal, range.address, range.chunks.size() * chunk_bytes_, veiled)) return;
  throw Error(UM_DRIVER_ERROR, "the kernel does not change who sees a chunk (vm.max_map_count?)");
}

void ChunkRanges::show(ChunkRange* range, RawAccess access) {
  if (!backend_.hooks->in_host || range->shown == access) return;
  if (access == RawAccess::none) {
    veil(*range, true);
  } else {
    allow(*range, access == RawAccess::write);
    if (range->shown == RawAccess::none) veil(*range, false);
  }
  range->shown = access;
}

// ---- back to the driver --------------------------------------------------------------------------------------

// False where somebody has it, work that it was given may still run, or the driver refuses.
bool ChunkRanges::retire(ChunkRange* range) noexcept {
  if (range->held || !fences_.surely_passed(range->last_use, Wait::chunk_ready)) return false;
  backend_.helper->settle(std::exchange(range->mapping, 0));
  const uint64_t bytes = range->chunks.size() * chunk_bytes_;
  if (!range->refused && backend_.call().mem_unmap(range->address, bytes) != CUDA_SUCCESS) return false;
  for (Chunk* chunk : range->chunks) chunk->ranges.erase(std::find(chunk->ranges.begin(), chunk->ranges.end(), range));
  auto& alike = by_size_[range->chunks.size()];
  alike.erase(std::find(alike.begin(), alike.end(), range));
  replace(&range->last_use, 0);
  mapped_ -= range->chunks.size();
  given_at_once_.erase(std::remove(given_at_once_.begin(), given_at_once_.end(), range), given_at_once_.end());
  if (range->kept) ++released_;
  rooms_.free(range->room, true);
  ranges_.erase(ranges_.find(range->chunks));
  return true;
}

bool ChunkRanges::release(Chunk* chunk) noexcept {
  while (!chunk->ranges.empty()) {
    if (!retire(chunk->ranges.back())) return false;
  }
  if (!fences_.surely_passed(chunk->last_use, Wait::chunk_ready)) return false;
  replace(&chunk->last_use, 0);
  unlink(chunk);
  pool_.give(chunk->handle);
  ++released_;
  const auto next = chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk->number));
  for (auto each = next; each != chunks_.end(); ++each) --(*each)->number;
  return true;
}

// The host waits. Also where no event could tell: nobody need ask again.
void ChunkRanges::end(Fences::Fence* last_use) {
  fences_.wait(*last_use, Wait::chunk_taken);
  if (!left_out(Wait::chunk_taken)) replace(last_use, 0);
}

void ChunkRanges::set_budget(uint64_t chunks) {
  pool_.set_budget(chunks);
  shed();
}

void ChunkRanges::settle() {
  for (Chunk* chunk = oldest_; chunk != nullptr && pool_.surplus() > pool_.unused();) {
    Chunk* const newer = chunk->newer;
    end(&chunk->last_use);
    for (ChunkRange* range : chunk->ranges) end(&range->last_use);
    if (!release(chunk)) break;
    chunk = newer;
  }
  shed();
}

void ChunkRanges::shed() noexcept {
  for (Chunk* chunk = oldest_; chunk != nullptr && pool_.surplus() > pool_.unused();) {
    Chunk* const newer = chunk->newer;
    if (!release(chunk)) break;
    chunk = newer;
  }
  pool_.shed();
}

// What uses them still is waited for.
bool ChunkRanges::give_back() noexcept {
  try {
    for (const auto& [chunks, range] : ranges_) {
      if (!range->held) end(&range->last_use);
    }
    for (Chunk* chunk = oldest_; chunk != nullptr; chunk = chunk->newer) end(&chunk->last_use);
  } catch (const std::exception&) {
    return false;
  }
  while (oldest_ != nullptr && release(oldest_)) {
  }
  return pool_.give_back() && chunks_.empty();
}

}  // namespace um
