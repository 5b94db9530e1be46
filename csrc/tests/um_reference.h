// The page rules once more, slowly and plainly: sets, maps and a full search for the victim, written from the facts
// about the driver and from nothing in um/. `um_fuzz` demands that um::Model agrees with it after every operation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "um/model.h"

namespace reference {

using um::Cause;
using um::Processor;

enum Right { kNothing, kRead, kWrite };
struct Seen {  // what one call did to the block that it named
  bool fault = false, first_touch = false, collapse = false, remote_map = false;
};

struct Page {
  bool allocated = false;
  std::set<Processor> copies;
  Right device_right = kNothing;
  bool discarded = false, read_mostly = false;
  std::optional<Processor> preferred;
  std::set<Processor> accessed_by;
  uint32_t pins = 0;
  uint64_t serviced = 0;  // time of the last service on the device

  bool on(Processor processor) const { return copies.count(processor) != 0; }
};

// Over PCIe the device reaches host memory, the host does not reach the device's.
inline bool reaches(Processor from, Processor to) { return from == to || from == Processor::device; }

class Model {
 public:
  Model(uint32_t blocks, uint32_t chunks) : pages(blocks), chunks_(chunks) {}

  std::vector<Page> pages;
  uint32_t plain = 0;
  int64_t fault_groups = 0, host_fault_groups = 0, first_touches = 0, evictions = 0, evictions_dropped = 0;
  int64_t collapses = 0, remote_maps = 0;
  std::map<std::pair<Processor, Cause>, int64_t> copied_to;  // bytes by destination and cause

  uint32_t resident() const {
    uint32_t count = 0;
    for (const Page& page : pages) count += page.on(Processor::device);
    return count;
  }
  uint32_t pinned() const {
    uint32_t count = 0;
    for (const Page& page : pages) count += page.on(Processor::device) && page.pins > 0;
    return count;
  }
  uint32_t free_chunks() const { return chunks_ - plain - resident(); }

  // Discarded before used; within each the one serviced longest ago; never a pinned one.
  uint32_t victim() const {
    uint32_t best = um::Model::kNone;
    for (uint32_t i = 0; i < pages.size(); ++i) {
      if (!pages[i].on(Processor::device) || pages[i].pins > 0) continue;
      if (best == um::Model::kNone || rank(pages[i]) < rank(pages[best])) best = i;
    }
    return best;
  }

  bool may(const Page& page, Processor who, bool write) const {
    if (who == Processor::device) return page.device_right >= (write ? kWrite : kRead);
    if (!page.on(Processor::host)) return false;
    return !write || (page.copies.size() == 1 && !page.discarded);
  }

  Seen access(uint32_t index, Processor who, bool write) {
    Page& page = pages[index];
    Seen seen;
    if (may(page, who, write)) return seen;
    seen.fault = true;
    ++(who == Processor::device ? fault_groups : host_fault_groups);
    touch_first(page, seen);
    const bool duplicate = page.read_mostly && !write;
    Processor where = destination(page, who);
    if (where == Processor::device && !page.on(where) && !make_room()) where = Processor::host;
    if (write && page.copies.size() == 2) {
      seen.collapse = true;
      ++collapses;
    }
    const Right before = page.copies.count(Processor::device) != 0 ? kNothing : page.device_right;
    place(page, where, duplicate, Cause::coherence);
    if (write) page.discarded = false;
    if (who == Processor::device) {
      const bool write_is_harmless = !page.read_mostly && !page.discarded;
      page.device_right = write || write_is_harmless ? kWrite : kRead;
      if (where == Processor::host) note_remote(seen, before);
    } else {
      map_accessed_by(page, seen);
    }
    if (where == Processor::device) page.serviced = ++clock_;
    return seen;
  }

  Seen prefetch(uint32_t index, Processor to) {
    Page& page = pages[index];
    Seen seen;
    bool duplicate = page.read_mostly;
    if (page.read_mostly && page.discarded) {
      duplicate = false;
      to = page.preferred.value_or(to);
    }
    if (to == Processor::device && !page.on(to) && !make_room()) return seen;
    touch_first(page, seen);
    place(page, to, duplicate, Cause::user);
    page.discarded = false;
    if (to == Processor::device) {
      if (page.device_right == kNothing) page.device_right = page.copies.size() == 2 ? kRead : kWrite;
      page.serviced = ++clock_;
    } else {
      map_accessed_by(page, seen);
    }
    return seen;
  }

  Seen advise(uint32_t index, um::Advice advice, Processor processor) {
    Page& page = pages[index];
    Seen seen;
    switch (advice) {
      case um::Advice::set_read_mostly:
        if (page.read_mostly) break;
        page.read_mostly = true;
        if (page.on(Processor::device)) page.serviced = ++clock_;
        page.device_right = page.on(Processor::device) && page.device_right != kNothing ? kRead : kNothing;
        break;
      case um::Advice::unset_read_mostly:
        if (!page.read_mostly) break;
        page.read_mostly = false;
        if (page.copies.size() == 2) {
          const Processor keeper = page.preferred.value_or(Processor::host);
          place(page, keeper, false, Cause::user);
          if (keeper == Processor::device) page.serviced = ++clock_;
        }
        map_accessed_by(page, seen);
        break;
      case um::Advice::set_preferred_location:
        prefer(page, processor, seen);
        break;
      case um::Advice::unset_preferred_location:
        prefer(page, std::nullopt, seen);
        break;
      case um::Advice::set_accessed_by:
        page.accessed_by.insert(processor);
        if (processor == Processor::device) map_accessed_by(page, seen);
        break;
      case um::Advice::unset_accessed_by:
        page.accessed_by.erase(processor);
        break;
    }
    return seen;
  }

  void discard(uint32_t index) {
    pages[index].discarded = true;
    pages[index].device_right = kNothing;
    pages[index].serviced = ++clock_;
  }
  void pin(uint32_t index) { ++pages[index].pins; }
  void unpin(uint32_t index) {
    if (--pages[index].pins == 0) pages[index].serviced = ++clock_;
  }
  bool take_chunk() {
    if (!make_room()) return false;
    ++plain;
    return true;
  }

 private:
  static std::pair<bool, uint64_t> rank(const Page& page) { return {!page.discarded, page.serviced}; }

  void touch_first(const Page& page, Seen& seen) {
    if (!page.copies.empty()) return;
    seen.first_touch = true;
    ++first_touches;
  }

  // The driver's list of rules, first match wins, for either processor.
  Processor destination(const Page& page, Processor who) const {
    if (page.read_mostly) return who;
    if (page.preferred == who) return who;
    if (page.copies.empty()) {
      return page.preferred && reaches(who, *page.preferred) ? *page.preferred : who;
    }
    const Processor closest = page.on(who) ? who : *page.copies.begin();
    if (page.accessed_by.count(who) != 0 && reaches(who, closest)) return closest;
    if (closest != who && page.preferred && reaches(who, *page.preferred)) return *page.preferred;
    return who;
  }

  // Makes the page resident at `where`; the other copy stays when `duplicate`.
  void place(Page& page, Processor where, bool duplicate, Cause cause) {
    const Processor other = where == Processor::device ? Processor::host : Processor::device;
    if (!page.on(where)) {
      if (page.on(other) && !page.discarded) copied_to[{where, cause}] += int64_t{2} * 1024 * 1024;
      page.copies.insert(where);
      if (where == Processor::device) page.device_right = kNothing;
    }
    if (!page.on(other)) return;
    if (duplicate) {
      if (page.device_right == kWrite) page.device_right = kRead;
      return;
    }
    page.copies.erase(other);
    if (other == Processor::device) page.device_right = kNothing;
  }

  void note_remote(Seen& seen, Right before) {
    if (before != kNothing) return;
    seen.remote_map = true;
    ++remote_maps;
  }

  void map_accessed_by(Page& page, Seen& seen) {
    if (page.accessed_by.count(Processor::device) == 0) return;
    if (page.read_mostly || page.discarded || page.copies.empty()) return;
    if (page.on(Processor::device)) {
      page.device_right = kWrite;
    } else if (page.preferred != Processor::device) {
      note_remote(seen, page.device_right);
      page.device_right = kWrite;
    }
  }

  void prefer(Page& page, std::optional<Processor> where, Seen& seen) {
    if (page.preferred == where) return;
    const std::optional<Processor> former = page.preferred;
    page.preferred = where;
    if (former == Processor::device) map_accessed_by(page, seen);
    if (where == Processor::device && !page.read_mostly && !page.on(Processor::device)) page.device_right = kNothing;
  }

  bool make_room() {
    if (free_chunks() > 0) return true;
    const uint32_t index = victim();
    if (index == um::Model::kNone) return false;
    Page& page = pages[index];
    const bool copy = page.copies.size() == 1 && !page.discarded;
    ++(copy ? evictions : evictions_dropped);
    if (copy) {
      copied_to[{Processor::host, Cause::eviction}] += int64_t{2} * 1024 * 1024;
      page.copies.insert(Processor::host);
    }
    page.copies.erase(Processor::device);
    page.device_right = kNothing;
    Seen nobody_asked;
    map_accessed_by(page, nobody_asked);
    return true;
  }

  uint32_t chunks_;
  uint64_t clock_ = 0;
};

}  // namespace reference
