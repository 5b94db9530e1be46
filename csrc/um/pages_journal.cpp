#include "um/pages_journal.h"

#include <algorithm>

namespace um::pages {

void Journal::wait_until(int64_t time_ns) { now_ns_ = std::max(now_ns_, time_ns); }

void Journal::wait_for_engines() { wait_until(std::max(engine_free_ns_[0], engine_free_ns_[1])); }

// The chunk that an eviction frees is filled only when its contents are out, so a copy to the device begins after the
// copies to the host that were asked for before it (uvm/uvm_va_block.c, the chunk's tracker). Evictions for the next
// block do overlap with it.
void Journal::transfer(Direction direction, Cause cause, uint64_t address, uint64_t bytes) {
  const bool to_device = direction == Direction::h2d;
  double bytes_per_s = to_device ? costs.h2d_bytes_per_s : costs.d2h_bytes_per_s;
  if (on_engines_ && costs.prefetch_bytes_per_s > 0) bytes_per_s = costs.prefetch_bytes_per_s;
  const int64_t takes_ns = costs.transfer_ns + duration(bytes, bytes_per_s);
  int64_t start_ns = now_ns_;
  if (on_engines_) {
    start_ns = std::max(start_ns, engine_free_ns_[to_device]);
    if (to_device) start_ns = std::max(start_ns, engine_free_ns_[false]);
    engine_free_ns_[to_device] = start_ns + takes_ns;
  } else {
    now_ns_ += takes_ns;
  }
  records_.push_back({start_ns, start_ns + takes_ns, address, bytes, 0, direction, cause});
  (to_device ? counters.shared.bytes_h2d : counters.shared.bytes_d2h)[static_cast<int>(cause)] +=
      static_cast<int64_t>(bytes);
}

void Journal::begin_batch(uint32_t faults) {
  ++counters.batches;
  counters.faults += faults;
  batch_start_ns_ = now_ns_;
  spend(costs.batch_ns + costs.entry_ns * faults);
}

void Journal::fault_group(uint64_t address, uint32_t faults) {
  ++counters.shared.fault_groups;
  open_groups_.push_back(records_.size());
  records_.push_back({batch_start_ns_, batch_start_ns_, address, 0, faults, Direction::none, Cause::coherence});
}

void Journal::end_batch() {
  for (uint64_t index : open_groups_) {
    records_[index].end_ns = now_ns_;
    counters.fault_service_ns += now_ns_ - records_[index].start_ns;
  }
  open_groups_.clear();
}

}  // namespace um::pages
