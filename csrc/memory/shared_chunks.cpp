#include "memory/shared_chunks.h"

#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/room.h"

namespace um {

using driver::CUstream;

namespace {

uint64_t ones(uint64_t count) { return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

}  // namespace

SharedChunks::SharedChunks(ChunkRanges& ranges, Layout& layout, Fences& fences, uint64_t chunk_bytes)
    : ranges_(ranges),
      layout_(layout),
      fences_(fences),
      chunk_bytes_(chunk_bytes),
      unit_bytes_(unit_bytes_of(chunk_bytes)),
      units_(chunk_bytes / unit_bytes_) {}

// ---- which part ----------------------------------------------------------------------------------------------

// Returns the first of `count` consecutive units that no part has; kAnyUnit: there are none.
uint64_t SharedChunks::free_run(uint64_t taken, uint64_t count) const noexcept {
  for (uint64_t at = 0; at + count <= units_; ++at) {
    if ((taken >> at & ones(count)) == 0) return at;
  }
  return kAnyUnit;
}

void SharedChunks::measure(SharedChunk* shared) const noexcept {
  uint64_t row = 0;
  shared->longest = 0;
  for (uint64_t unit = 0; unit < units_; ++unit) {
    row = (shared->taken >> unit & 1) != 0 ? 0 : row + 1;
    shared->longest = std::max(shared->longest, row);
  }
}

// Returns the chunk with the shortest run of free units that suffices; of equal ones, the one that was taken first.
SharedChunk* SharedChunks::find(uint64_t bytes, uint64_t unit) const {
  const uint64_t count = units(bytes);
  SharedChunk* found = nullptr;
  for (const auto& each : shared_) {
    if (each->longest < count || each->tiny != (bytes < unit_bytes_)) continue;
    if (unit != kAnyUnit && (each->taken >> unit & ones(count)) != 0) continue;
    if (found == nullptr || each->longest < found->longest) found = each.get();
  }
  return found;
}

uint64_t SharedChunks::chunks_for(const std::vector<uint64_t>& bytes) const {
  std::vector<uint64_t> left;  // units, by chunk
  uint64_t tiny = 0;
  for (const uint64_t each : bytes) {
    if (each < unit_bytes_) {
      ++tiny;
      continue;
    }
    const auto fits = [&](uint64_t free) { return free >= units(each); };
    auto found = std::find_if(left.begin(), left.end(), fits);
    if (found == left.end()) found = left.insert(found, units_);
    *found -= units(each);
  }
  return left.size() + (tiny + units_ - 1) / units_;
}

// ---- taking and giving ---------------------------------------------------------------------------------------

ChunkRange* SharedChunks::take(uint64_t bytes, CUstream first_user, int32_t storage, uint64_t wanted) {
  uint64_t first = wanted;
  SharedChunk* const shared = choose(bytes, first_user, storage, &first);
  if (shared == nullptr) return nullptr;
  const OnError undo([&] {
    if (shared->taken == 0) close(shared);
  });
  const uint64_t count = units(bytes);
  if (first == kAnyUnit) first = free_run(shared->taken, count);
  if (first >= units_ || first + count > units_) throw Error(UM_BAD_STATE, "a shared chunk has less room than it says");
  sit(storage, {shared->group, first});
  for (uint64_t unit = first; unit < first + count; ++unit) {
    const Fences::Fence last = shared->last_use[unit];
    if (unit == first || last != shared->last_use[unit - 1]) fences_.order(first_user, last, Wait::place_reused);
  }
  ChunkRange* const range = ranges_.take_part(shared->whole->chunks.front());
  range->shared = shared;
  range->part = ones(count) << first;
  range->room->address = range->address + first * unit_bytes_;
  range->room->bytes = count * unit_bytes_;
  if (shared->taken != 0 && shared->all_left()) layout_.cancel_departure(shared->whole);
  shared->taken |= range->part;
  measure(shared);
  return range;
}

// Returns a chunk for a part. If `*first` is given, the part begins at that unit. Otherwise `*first` becomes the unit
// of the storage's seat if that is free, and kAnyUnit if not.
SharedChunk* SharedChunks::choose(uint64_t bytes, CUstream first_user, int32_t storage, uint64_t* first) {
  const bool tiny = bytes < unit_bytes_;
  const Seat* const seat = seat_of(storage);
  SharedChunk* shared = nullptr;
  if (*first != kAnyUnit) {
    shared = find(bytes, *first);
    if (shared == nullptr) shared = open(-++unknown_, tiny, first_user);
  } else if (seat != nullptr) {
    shared = at(*seat, bytes, first_user);
    if (shared != nullptr) *first = seat->first;
  }
  if (shared != nullptr) return shared;
  *first = kAnyUnit;
  shared = find(bytes);
  if (shared != nullptr) return shared;
  const bool again = seat != nullptr && find_group(seat->group) == nullptr;
  const int64_t group = again ? seat->group : storage >= 0 ? ++groups_ : -++unknown_;
  return open(group, tiny, first_user);
}

// Returns the chunk of a seat. Opens the group's chunk if it is not held, unless all obtainable chunks are to be kept
// free: then other shared chunks are tried first. nullptr: another storage has the units, or the storage is larger now.
SharedChunk* SharedChunks::at(const Seat& seat, uint64_t bytes, CUstream first_user) {
  const uint64_t count = units(bytes);
  if (seat.first + count > units_) return nullptr;
  const bool tiny = bytes < unit_bytes_;
  SharedChunk* const shared = find_group(seat.group);
  if (shared == nullptr)
    return ranges_.chunks.obtainable() > layout_.spare() ? open(seat.group, tiny, first_user) : nullptr;
  return shared->tiny == tiny && (shared->taken >> seat.first & ones(count)) == 0 ? shared : nullptr;
}

SharedChunks::Seat* SharedChunks::seat_of(int32_t storage) noexcept {
  const auto found = visits_.find(storage);
  if (found == visits_.end()) return nullptr;
  Visits& visits = found->second;
  if (visits.step != step_) visits.next = 0;
  visits.step = step_;
  return visits.next < visits.seats.size() ? &visits.seats[visits.next] : nullptr;
}

void SharedChunks::sit(int32_t storage, Seat seat) {
  if (storage < 0 || !layout_.follows()) return;
  Seat* const before = seat_of(storage);
  Visits& visits = visits_[storage];
  visits.step = step_;
  ++visits.next;
  if (before != nullptr) {
    *before = seat;
  } else {
    visits.seats.push_back(seat);
  }
}

void SharedChunks::begin_step() noexcept {
  ++step_;
  unknown_ = 0;
}

// All parts of the chunk wait for the chunk's last user.
SharedChunk* SharedChunks::open(int64_t group, bool tiny, CUstream first_user) {
  um::make_room(shared_, shared_.size() + 1);
  auto opened = std::make_unique<SharedChunk>();
  opened->whole = layout_.take_shared(first_user, group);
  if (opened->whole == nullptr) return nullptr;
  opened->longest = units_;
  opened->group = group;
  opened->tiny = tiny;
  const Fences::Fence before = opened->whole->chunks.front()->last_use;
  for (uint64_t unit = 0; unit < units_; ++unit) {
    fences_.retain(before);
    opened->last_use[unit] = before;
  }
  shared_.push_back(std::move(opened));
  return shared_.back().get();
}

void SharedChunks::give(ChunkRange* range, Fences::Fence last_use) noexcept {
  SharedChunk* const shared = range->shared;
  for (uint64_t unit = 0; unit < units_; ++unit) {
    if ((range->part >> unit & 1) == 0 || last_use == 0) continue;
    fences_.retain(last_use);
    fences_.replace(&shared->last_use[unit], last_use);
  }
  const bool had_left = shared->all_left();
  shared->taken &= ~range->part;
  shared->left &= ~range->part;
  range->room->address = range->address;
  range->room->bytes = chunk_bytes_;
  range->shared = nullptr;
  ranges_.give_part(range, last_use);
  if (shared->taken == 0) return close(shared);
  if (!had_left && shared->all_left()) layout_.leaves(shared->whole, 0);
  measure(shared);
}

std::vector<const ChunkRange*> SharedChunks::in_the_way(int32_t storage) {
  const Seat* const seat = seat_of(storage);
  if (seat == nullptr || find_group(seat->group) != nullptr) return {};
  return layout_.in_the_way_of_shared(seat->group);
}

SharedChunk* SharedChunks::find_group(int64_t group) const {
  const auto is_it = [&](const auto& each) { return each->group == group; };
  const auto found = std::find_if(shared_.begin(), shared_.end(), is_it);
  return found == shared_.end() ? nullptr : found->get();
}

void SharedChunks::leaves(const ChunkRange* range, uint64_t bytes) noexcept {
  SharedChunk* const shared = range->shared;
  shared->left |= range->part;
  if (shared->all_left()) layout_.leaves(shared->whole, bytes);
}

void SharedChunks::cancel_departure(const ChunkRange* range) noexcept {
  SharedChunk* const shared = range->shared;
  if (shared->all_left()) layout_.cancel_departure(shared->whole);
  shared->left &= ~range->part;
}

// The chunk's next user waits for the last users of all parts.
void SharedChunks::close(SharedChunk* shared) noexcept {
  Fences::Fence all = 0;
  for (uint64_t unit = 0; unit < units_; ++unit) {
    const Fences::Fence last = shared->last_use[unit];
    if (unit == 0 || last != shared->last_use[unit - 1]) {
      Fences::Fence joined = Fences::kWholeDevice;
      try {
        joined = fences_.join(all, last);
      } catch (const std::bad_alloc&) {
        joined = Fences::kWholeDevice;
      }
      fences_.replace(&all, joined);
    }
  }
  for (Fences::Fence& last : shared->last_use) fences_.replace(&last);
  layout_.give(shared->whole, all);
  fences_.release(all);
  shared_.erase(std::find_if(shared_.begin(), shared_.end(), [&](const auto& each) { return each.get() == shared; }));
}

}  // namespace um
