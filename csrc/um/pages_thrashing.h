// Thrashing: pages that two processors fight over are throttled, then pinned (uvm/uvm_perf_thrashing.c).
#pragma once

#include <memory>
#include <vector>

#include "um/eviction_order.h"
#include "um/page_mask.h"
#include "um/pages_journal.h"

namespace um::pages {

using rules::Location;

inline int index_of(Processor processor) { return static_cast<int>(processor); }
inline Processor other(Processor who) { return who == Processor::host ? Processor::device : Processor::host; }
inline Processor processor_at(Location location) {
  return location == Location::host ? Processor::host : Processor::device;
}
inline Location location_of(Processor who) { return who == Processor::host ? Location::host : Location::device; }

namespace thrashing {

inline constexpr uint32_t kThreshold = 3;             // uvm_perf_thrashing_threshold, events
inline constexpr int64_t kLapseNs = 500'000;          // uvm_perf_thrashing_lapse_usec, at first
inline constexpr int64_t kMostLapseNs = 500'000'000;  // UVM_PERF_THRASHING_LAPSE_USEC_MAX
inline constexpr int64_t kLeastLapseNs = 5'000;       // UVM_PERF_THRASHING_LAPSE_USEC_MIN
inline constexpr uint32_t kLapseVotes = 32;           // uvm_perf_lapse_vote_threshold
inline constexpr int64_t kNapNs = kLapseNs;           // uvm_perf_thrashing_nap = 1 lapse
inline constexpr uint32_t kPinThreshold = 10;         // uvm_perf_thrashing_pin_threshold, throttles
inline constexpr int64_t kPinNs = 300 * kLapseNs;     // uvm_perf_thrashing_pin
inline constexpr int64_t kEpochNs = 2000 * kLapseNs;  // uvm_perf_thrashing_epoch
inline constexpr uint32_t kMostResets = 4;            // uvm_perf_thrashing_max_resets

struct Page {
  int64_t last_ns = 0;  // of its last event; 0: none yet
  int64_t throttle_end_ns = 0;
  int64_t unpin_ns = 0;
  uint32_t events = 0, throttles = 0;
  Location spared = Location::none;  // the one processor that goes on while the others are throttled
  Location pinned = Location::none;
  bool fights[2] = {};     // by Processor
  bool throttled[2] = {};  // by Processor
};

struct Block {
  int64_t last_ns = 0;  // of the block's last migration; 0: none yet
  Processor last_processor = Processor::host;
  int64_t last_thrashing_ns = 0;
  uint32_t resets = 0, pinned_count = 0;  // the driver never lowers the second
  PageMask thrashing, pinned;
  std::vector<Page> pages;  // empty until two processors meet within a lapse
};

enum class Verdict : uint8_t { none, throttle, pin_host, pin_device };

}  // namespace thrashing

// One detector for all blocks of a machine.
class Thrashing {
 public:
  Thrashing(Journal& journal, bool coherent) : journal_(journal), coherent_(coherent) {}

  // Pages of a region migrated to a processor because of faults, their prefetches or access counters. Evictions are
  // no events; user migrations and duplications are resets.
  void migrated(std::unique_ptr<thrashing::Block>& block, uint32_t pages, Region region, Processor to, bool prefetched);
  void reset(thrashing::Block* block, Region region);
  // What to do about a fault on a page.
  thrashing::Verdict verdict(thrashing::Block* block, uint32_t page, Processor who, Location preferred,
                             Processor resident);
  // Ends pins whose time is over; returns the pages that are free again.
  PageMask unpin_expired(thrashing::Block& block);

 private:
  void adjust_lapse(int64_t observed_ns);
  void reset_page(thrashing::Block& block, uint32_t page);
  void forget(thrashing::Block& block);
  bool may_throttle(thrashing::Page& page, Processor who);
  thrashing::Verdict resolve(const thrashing::Page& page, Processor who, Location preferred, Processor resident) const;
  bool all_reach(const thrashing::Page& page, Processor to) const;
  void apply(thrashing::Block& block, uint32_t page, Processor who, thrashing::Verdict verdict);

  Journal& journal_;
  const bool coherent_;
  int64_t lapse_ns_ = thrashing::kLapseNs;
  int lapse_votes_ = 0;
};

}  // namespace um::pages
