#include "um/pages_thrashing.h"

#include <algorithm>

// The functions named in comments are those of uvm/uvm_perf_thrashing.c. Revocations, its second kind of event, come
// from system-wide atomics and do not happen here.

namespace um::pages {

using thrashing::Verdict;

namespace {

Verdict pin(Processor where) { return where == Processor::host ? Verdict::pin_host : Verdict::pin_device; }

void end_throttling(thrashing::Page& page) {
  page.throttled[0] = page.throttled[1] = false;
  page.throttle_end_ns = 0;
}

}  // namespace

// thrashing_event_cb. Pages are followed one by one only once a block goes from one processor to the other within a
// lapse. A migration that a pin asked for is no event.
void Thrashing::migrated(std::unique_ptr<thrashing::Block>& block, uint32_t pages, Region region, Processor to,
                         bool prefetched) {
  if (!block) block = std::make_unique<thrashing::Block>();
  const int64_t now = std::max<int64_t>(journal_.now(), 1);
  if (!block->pages.empty() && !prefetched && block->pinned.count(region) == region.pages()) return;
  const bool met = block->last_ns != 0 && block->last_processor != to && now - block->last_ns <= lapse_ns_;
  block->last_ns = now;
  block->last_processor = to;
  if (block->pages.empty()) {
    if (!met) return;
    block->pages.resize(pages);
  }
  for (uint32_t page = region.first; page < region.outer; ++page) {
    thrashing::Page& here = block->pages[page];
    const int64_t before = here.last_ns;
    here.fights[index_of(to)] = true;
    here.last_ns = now;
    if (before == 0) continue;
    if (now - before <= lapse_ns_) {
      if (++here.events == thrashing::kThreshold) {
        block->thrashing.set(page);
        ++journal_.counters.thrashing_pages;
      }
      if (here.events >= thrashing::kThreshold) block->last_thrashing_ns = now;
    } else if (here.events >= thrashing::kThreshold && here.pinned == Location::none) {
      reset_page(*block, page);
    }
  }
}

// thrashing_reset_pages_in_region
void Thrashing::reset(thrashing::Block* block, Region region) {
  if (block == nullptr || block->pages.empty()) return;
  (block->thrashing & PageMask::of(region)).each([&](uint32_t page) { reset_page(*block, page); });
}

// thrashing_reset_page
void Thrashing::reset_page(thrashing::Block& block, uint32_t page) {
  block.pages[page] = {};
  const PageMask alone = PageMask::of({page, page + 1});
  block.thrashing -= alone;
  block.pinned -= alone;
}

PageMask Thrashing::unpin_expired(thrashing::Block& block) {
  PageMask freed;
  block.pinned.each([&](uint32_t page) {
    if (block.pages[page].unpin_ns <= journal_.now()) freed.set(page);
  });
  freed.each([&](uint32_t page) { reset_page(block, page); });
  return freed;
}

void Thrashing::forget(thrashing::Block& block) {
  ++block.resets;
  block.pages.clear();
  block.last_ns = block.last_thrashing_ns = 0;
  block.thrashing = {};
}

// uvm_perf_thrashing_get_hint. A block that was ever pinned is not forgotten when its epoch ends: the driver's count
// of pinned pages never falls.
Verdict Thrashing::verdict(thrashing::Block* block, uint32_t page, Processor who, Location preferred,
                           Processor resident) {
  if (block == nullptr || block->pages.empty()) return Verdict::none;
  const int64_t now = journal_.now();
  if (block->last_thrashing_ns != 0 && now - block->last_thrashing_ns > thrashing::kEpochNs &&
      block->pinned_count == 0 && block->resets < thrashing::kMostResets) {
    forget(*block);
    return Verdict::none;
  }
  thrashing::Page& here = block->pages[page];
  if (here.events < thrashing::kThreshold) return Verdict::none;
  Verdict verdict = Verdict::throttle;
  if (may_throttle(here, who)) {
    adjust_lapse(now - here.last_ns);
    if (now - here.last_ns > lapse_ns_ && here.pinned == Location::none) return Verdict::none;
    here.fights[index_of(who)] = true;
    if (now > here.throttle_end_ns) {  // thrashing_throttle_update: a new period, another is spared
      here.throttle_end_ns = now + thrashing::kNapNs;
      here.spared = here.spared == location_of(who) ? Location::none : location_of(who);
    } else if (here.spared == Location::none) {
      here.spared = location_of(who);
    }
    verdict = resolve(here, who, preferred, resident);
  }
  apply(*block, page, who, verdict);
  return verdict;
}

// adjust_thrashing_lapse, as it is compiled: it compares its signed votes with an unsigned threshold, so that a single
// vote for "faster than a lapse" lengthens the lapse as 32 for "slower" do, and it shortens at its upper bound alone.
void Thrashing::adjust_lapse(int64_t observed_ns) {
  lapse_votes_ += observed_ns < lapse_ns_ ? -1 : 1;
  if (static_cast<uint32_t>(lapse_votes_) < thrashing::kLapseVotes) return;
  if (lapse_ns_ < thrashing::kMostLapseNs) {
    lapse_ns_ += std::min(lapse_ns_ / 8, thrashing::kMostLapseNs / 10);
  } else if (lapse_votes_ > 0) {
    lapse_ns_ -= std::max(lapse_ns_ / 8, thrashing::kLeastLapseNs);
  } else {
    return;
  }
  lapse_votes_ /= 2;
}

// False while the processor is being throttled; else its throttling is over.
bool Thrashing::may_throttle(thrashing::Page& page, Processor who) {
  if (!page.throttled[index_of(who)]) return true;
  if (journal_.now() < page.throttle_end_ns && page.spared != location_of(who)) return false;
  page.throttled[index_of(who)] = false;
  if (!page.throttled[index_of(other(who))]) page.throttle_end_ns = 0;
  return true;
}

bool Thrashing::all_reach(const thrashing::Page& page, Processor to) const {
  return coherent_ || to == Processor::host || !page.fights[index_of(Processor::host)];
}

// get_hint_for_migration_thrashing
Verdict Thrashing::resolve(const thrashing::Page& page, Processor who, Location preferred, Processor resident) const {
  const bool preferred_fights = preferred != Location::none && page.fights[index_of(processor_at(preferred))];
  if (preferred != Location::none && all_reach(page, processor_at(preferred))) return pin(processor_at(preferred));
  if (!preferred_fights && (coherent_ || !page.fights[index_of(other(resident))])) {
    // The host caches device memory on coherent machines, the device does not cache the host's.
    if (resident == Processor::device || !all_reach(page, who)) return pin(resident);
    return who == Processor::device ? Verdict::pin_device : Verdict::none;
  }
  const bool spared = page.spared == location_of(who);
  const bool patience_over = page.throttles >= thrashing::kPinThreshold;
  if (location_of(who) == preferred && page.pinned != Location::none)
    return page.pinned == preferred || spared ? pin(who) : Verdict::throttle;
  if (location_of(who) != preferred && page.pinned != Location::none) {
    // Everybody who fights reaches the host.
    if (spared) return all_reach(page, who) ? pin(who) : Verdict::pin_host;
    const Processor where = processor_at(page.pinned);
    const bool reaches = who == where || who == Processor::device || coherent_;
    return reaches ? pin(where) : Verdict::throttle;
  }
  if (!spared) return Verdict::throttle;
  return patience_over ? pin(who) : Verdict::none;
}

// thrashing_pin_page, thrashing_throttle_processor
void Thrashing::apply(thrashing::Block& block, uint32_t page, Processor who, Verdict verdict) {
  thrashing::Page& here = block.pages[page];
  if (verdict == Verdict::throttle) {
    ++journal_.counters.throttles;
    if (!here.throttled[index_of(who)] && here.pinned == Location::none) ++here.throttles;
    here.throttled[index_of(who)] = true;
  } else if (verdict != Verdict::none) {
    const Location where = verdict == Verdict::pin_host ? Location::host : Location::device;
    if (here.pinned != where) end_throttling(here);
    if (here.pinned == Location::none) {
      here.unpin_ns = journal_.now() + thrashing::kPinNs;
      here.throttles = 0;
      ++block.pinned_count;
      ++journal_.counters.pinned_pages;
      block.pinned.set(page);
    }
    here.pinned = where;
  }
}

}  // namespace um::pages
