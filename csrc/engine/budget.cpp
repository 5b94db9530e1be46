#include "engine/budget.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/migration.h"

namespace um {
uint64_t Budget::spanned_bytes(uint64_t address, uint64_t bytes) {
  return bytes == 0 ? 0 : ((address + bytes - 1) / kBlockBytes - address / kBlockBytes + 1) * kBlockBytes;
}

Budget::Budget(uint64_t bytes, uint32_t most_pages)
    : bytes_(bytes / kBlockBytes * kBlockBytes),
      model_(most_pages, static_cast<uint32_t>(bytes / kBlockBytes)),
      unused_pages_{{0, most_pages}},
      page_addresses_(most_pages) {}

uint32_t Budget::take_pages(uint32_t count) {
  for (auto range = unused_pages_.begin(); range != unused_pages_.end(); ++range) {
    const auto [first, available] = *range;
    if (available < count) continue;
    unused_pages_.erase(range);
    if (available > count) unused_pages_.emplace(first + count, available - count);
    return first;
  }
  throw Error(UM_OUT_OF_HOST_MEMORY, "managed memory in arenas of " + std::to_string(count * kBlockBytes) +
                                         " bytes and more is beyond what a budget can follow on this machine");
}

void Budget::forget(const Followed& arena) {
  const auto count = static_cast<uint32_t>(arena.bytes / kBlockBytes);
  for (uint32_t page = arena.first_page; page < arena.first_page + count; ++page) model_.release(page);
  auto [range, inserted] = unused_pages_.emplace(arena.first_page, count);
  const auto above = std::next(range);
  if (above != unused_pages_.end() && range->first + range->second == above->first) {
    range->second += above->second;
    unused_pages_.erase(above);
  }
  if (range != unused_pages_.begin()) {
    const auto below = std::prev(range);
    if (below->first + below->second == range->first) {
      below->second += range->second;
      unused_pages_.erase(range);
    }
  }
}

void Budget::follow(const Allocations& allocations) {
  if (allocations.arena_changes() == changes_seen_) return;
  for (auto& [address, arena] : arenas_) arena.live = false;
  std::vector<const Arena*> fresh;
  allocations.each_arena([&](const Arena& arena) {
    if (arena.heap->placement.memory != UM_MEMORY_MANAGED) return;
    const auto known = arenas_.find(arena.address());
    if (known != arenas_.end() && known->second.serial == arena.serial) {
      known->second.live = true;
    } else {
      fresh.push_back(&arena);
    }
  });
  for (auto each = arenas_.begin(); each != arenas_.end();) {
    if (!each->second.live) forget(each->second);
    each = each->second.live ? std::next(each) : arenas_.erase(each);
  }
  for (const Arena* arena : fresh) {
    const auto count = static_cast<uint32_t>(arena->bytes() / kBlockBytes);
    const uint32_t first = take_pages(count);
    model_.allocate(first, count);
    driver::CUmem_advise advice{};
    const bool advised = driver_advice(static_cast<um_advice>(arena->heap->placement.advice), &advice);
    for (uint32_t i = 0; i < count; ++i) {
      page_addresses_[first + i] = arena->address() + i * kBlockBytes;
      if (advised)
        model_.advise(first + i, static_cast<Advice>(advice - driver::CU_MEM_ADVISE_SET_READ_MOSTLY),
                      Processor::device);
    }
    const bool read_mostly = arena->heap->placement.advice == UM_ADVICE_READ_MOSTLY;
    arenas_.emplace(arena->address(),
                    Followed{arena->address(), arena->bytes(), arena->serial, first, read_mostly, true});
  }
  changes_seen_ = allocations.arena_changes();
}

const Budget::Followed* Budget::arena_of(uint64_t address) const {
  auto above = arenas_.upper_bound(address);
  if (above == arenas_.begin()) return nullptr;
  const Followed& arena = std::prev(above)->second;
  return address < arena.address + arena.bytes ? &arena : nullptr;
}

template <class Each>
void Budget::each_page(uint64_t address, uint64_t bytes, const Each& each) const {
  const Followed* arena = arena_of(address);
  if (arena == nullptr || bytes == 0) return;
  const uint64_t last = (address + bytes - 1 - arena->address) / kBlockBytes;
  for (uint64_t page = (address - arena->address) / kBlockBytes; page <= last; ++page) {
    each(arena->first_page + static_cast<uint32_t>(page));
  }
}

void Budget::note_victims(const Outcome& outcome) {
  for (int i = 0; i < outcome.count; ++i) {
    const Action& action = outcome.actions[i];
    if (action.what == Do::evict_copy || action.what == Do::evict_drop) {
      victims_.push_back(page_addresses_[action.block]);
    }
  }
}

void Budget::recall() {
  std::sort(returned_.begin(), returned_.end());
  returned_.erase(std::unique(returned_.begin(), returned_.end()), returned_.end());
  victims_.insert(victims_.end(), returned_.begin(), returned_.end());
  returned_.clear();
}

void Budget::pass(uint64_t address, uint64_t bytes, Use use) {
  each_page(address, bytes, [&](uint32_t page) {
    if (use == Use::to_host && model_.chunks.pins(page) > 0)
      return;  // a page that is shared with an export cannot be evicted
    note_victims(use == Use::to_device || use == Use::to_host
                     ? model_.prefetch(page, use == Use::to_host ? Processor::host : Processor::device)
                     : model_.access(page, Processor::device, use == Use::write));
  });
}

// The device is larger than the budget, so a used page that the model could not hold is on the device nonetheless.
void Budget::note_return(uint64_t address, uint64_t bytes) {
  each_page(address, bytes, [&](uint32_t page) { returned_.push_back(page_addresses_[page]); });
}

void Budget::use(uint64_t address, uint64_t bytes, Use use) {
  recall();
  const size_t before = victims_.size();
  pass(address, bytes, use);
  if (use == Use::to_host) return;
  const uint64_t spanned = spanned_bytes(address, bytes), first = address / kBlockBytes * kBlockBytes;
  if (spanned > room_bytes()) return note_return(address, bytes);
  // An old page of the range may be evicted for another one: see keep().
  const size_t most = before + WorkingSet::kMostPasses * (spanned / kBlockBytes);
  for (size_t i = before; i < std::min(victims_.size(), most); ++i) {
    const uint64_t page = victims_[i];
    if (page >= first && page < first + spanned && !holds(page, 1)) pass(page, 1, use);
  }
}

void Budget::keep_faulted(uint64_t address, uint64_t used_bytes) {
  const uint64_t faulted = address / kBlockBytes * kBlockBytes;
  const bool fits = used_bytes + 2 * kBlockBytes <= room_bytes();
  for (const uint64_t page : {last_faulted_, faulted}) {
    if (holds(page, 1) || (fits && page != faulted)) continue;
    victims_.erase(std::remove(victims_.begin(), victims_.end(), page), victims_.end());
    returned_.push_back(page);
  }
  last_faulted_ = faulted;
}

void Budget::use(const WorkingSet& working_set) {
  recall();
  const size_t before = victims_.size();
  for (const um_access& access : working_set.accesses()) {
    pass(reinterpret_cast<uint64_t>(access.address), access.bytes, access.write != 0 ? Use::write : Use::read);
  }
  keep(working_set, before, 0);
}

void Budget::use_newest(const WorkingSet& working_set) {
  const size_t before = victims_.size();
  const um_access& newest = working_set.accesses().back();
  pass(reinterpret_cast<uint64_t>(newest.address), newest.bytes, Use::write);
  keep(working_set, before, working_set.accesses().size() - 1);
}

// Pages are evicted in the order of their service, so an old page of the op itself may be the next victim. It is then
// serviced again, as the youngest. If all pages fit, the op has them after at most one such service of each. If they do
// not fit, the device still holds them, because it is larger than the budget.
void Budget::keep(const WorkingSet& working_set, size_t first_victim, size_t first_access) {
  const uint64_t needed_bytes = working_set.bytes_if_above(room_bytes());
  if (needed_bytes <= room_bytes()) {
    const size_t most = first_victim + WorkingSet::kMostPasses * (needed_bytes / kBlockBytes);
    for (size_t i = first_victim; i < std::min(victims_.size(), most); ++i) {
      const std::optional<bool> writes = working_set.use_of(victims_[i]);
      if (writes && !holds(victims_[i], 1)) pass(victims_[i], 1, *writes ? Use::write : Use::read);
    }
    return;
  }
  const auto first = victims_.begin() + static_cast<std::ptrdiff_t>(first_victim);
  const auto own = std::stable_partition(first, victims_.end(),
                                         [&](uint64_t page) { return !working_set.use_of(page).has_value(); });
  returned_.insert(returned_.end(), own, victims_.end());
  victims_.erase(own, victims_.end());
  for (size_t i = first_access; i < working_set.accesses().size(); ++i) {
    const um_access& access = working_set.accesses()[i];
    note_return(reinterpret_cast<uint64_t>(access.address), access.bytes);
  }
}

bool Budget::holds(uint64_t address, uint64_t bytes) const {
  bool all = arena_of(address) != nullptr;
  each_page(address, bytes, [&](uint32_t page) { all = all && model_.resident(page, Processor::device); });
  return all;
}

void Budget::pin(uint64_t address, uint64_t bytes) {
  each_page(address, bytes, [&](uint32_t page) {  // page by page, so that the last page does not evict the first
    note_victims(model_.prefetch(page, Processor::device));
    model_.chunks.pin(page);
  });
}

void Budget::unpin(uint64_t address, uint64_t bytes) {
  each_page(address, bytes, [&](uint32_t page) { model_.chunks.unpin(page); });
}

void Budget::enforce(const Backend& backend, driver::CUstream stream) {
  size_t sent = 0;
  const OnError keep([&] { victims_.erase(victims_.begin(), victims_.begin() + static_cast<std::ptrdiff_t>(sent)); });
  while (sent < victims_.size()) {
    const uint64_t address = victims_[sent];
    const Followed* arena = arena_of(address);
    const auto leaves = [&](uint64_t at) {  // it was not used again meanwhile, and is not exported
      if (arena == nullptr || at >= arena->address + arena->bytes) return false;
      const uint32_t page = arena->first_page + static_cast<uint32_t>((at - arena->address) / kBlockBytes);
      return !model_.resident(page, Processor::device) && model_.chunks.pins(page) == 0;
    };
    uint64_t pages = 0;  // neighbouring pages are sent in one call
    while (sent + pages < victims_.size() && victims_[sent + pages] == address + pages * kBlockBytes &&
           leaves(address + pages * kBlockBytes)) {
      ++pages;
    }
    if (pages > 0) send(backend, stream, *arena, address, pages * kBlockBytes);
    sent += std::max<uint64_t>(pages, 1);
  }
  victims_.clear();
}

// The advice is unset meanwhile, because a prefetch of read-mostly memory would only make another copy.
void Budget::send(const Backend& backend, driver::CUstream stream, const Followed& arena, uint64_t address,
                  uint64_t bytes) const {
  if (arena.read_mostly) advise(backend, address, bytes, driver::CU_MEM_ADVISE_UNSET_READ_MOSTLY);
  prefetch(backend, address, bytes, true, stream);
  if (arena.read_mostly) advise(backend, address, bytes, driver::CU_MEM_ADVISE_SET_READ_MOSTLY);
}

}  // namespace um
