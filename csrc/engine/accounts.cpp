#include "engine/accounts.h"

#include <algorithm>

#include "engine/counters.h"
#include "engine/device_base.h"

namespace um {

void Accounts::read(um_counters* out) const {
  forget(out);
  base_.ops.tell(out);
  sampling_.tell(out);
  if (!base_.backend.hooks->exact) return;
  const driver::DeviceTotals totals = base_.backend.totals();
  fill(totals.model, out);
  out->unordered_faults = totals.unordered_faults;
  out->fault_service_ns = totals.stood.fault_ns();
}

// An exact device reports what is resident. Otherwise the budget's model does, and without a budget all reserved memory
// counts as resident.
void Accounts::sample_residency() noexcept {
  if (base_.backend.hooks->exact) {
    const driver::DeviceTotals totals = base_.backend.totals();
    resident_ = {totals.device_bytes, totals.device_peak_bytes};  // the device counts every page, not just samples
    host_.set(totals.host_bytes);
    for (int role = 0; role < UM_ROLE_COUNT; ++role) {
      resident_by_role_[role] = {totals.tag_bytes[role], totals.tag_peak_bytes[role]};
    }
    return;
  }
  const Allocations& allocations = *base_.allocations;
  const uint64_t resident_bytes = allocations.plain_bytes() + budget_.resident_bytes();
  resident_.set(std::min(base_.backend.total_bytes, resident_bytes));
  host_.set(allocations.statistics.reserved_bytes.now - resident_.now);
  for (int role = 0; role < UM_ROLE_COUNT; ++role) {
    resident_by_role_[role].set(std::min(allocations.statistics.reserved_by_role[role], resident_.now));
  }
}

void Accounts::read(um_memory_stats* out) {
  sample_residency();
  const Statistics& statistics = base_.allocations->statistics;
  *out = {};
  statistics.requested_bytes.tell(&out->requested_bytes, &out->requested_peak_bytes);
  statistics.reserved_bytes.tell(&out->reserved_bytes, &out->reserved_peak_bytes);
  resident_.tell(&out->resident_bytes, &out->resident_peak_bytes);
  host_.tell(&out->host_bytes, &out->host_peak_bytes);
  for (const Participant* const each : base_.participants.at_ops()) each->tell(out);
  out->allocation_count = statistics.allocation_count;
  out->free_count = statistics.free_count;
  out->live_allocations = statistics.live_allocations();
  for (int role = 0; role < UM_ROLE_COUNT; ++role) {
    statistics.by_role[role].tell(&out->requested_by_role[role], &out->requested_peak_by_role[role]);
    resident_by_role_[role].tell(&out->resident_by_role[role], &out->resident_peak_by_role[role]);
  }
  base_.allocations->each_block([&](const Block& block) {
    if (!notes(block).seen) out->workspace_bytes += block.record.bytes;
  });
}

um_memory_history Accounts::history() const {
  const Statistics& statistics = base_.allocations->statistics;
  return {statistics.live.peak, statistics.requested_total_bytes, statistics.failure_count, statistics.exports_ended};
}

uint64_t Accounts::placed(um_placed* out, uint64_t capacity) const {
  uint64_t count = 0;
  for (uint32_t role = 0; role < UM_ROLE_COUNT; ++role) {
    for (uint32_t memory = 0; memory <= UM_MEMORY_CHUNKED; ++memory) {
      for (uint32_t advice = 0; advice < UM_ADVICE_COUNT; ++advice) {
        const uint64_t bytes = base_.allocations->statistics.placed_bytes[role][memory][advice];
        if (bytes == 0) continue;
        if (count < capacity) out[count] = {role, memory, advice, 0, bytes};
        ++count;
      }
    }
  }
  return count;
}

void Accounts::reset_all_peaks() {
  base_.backend.hooks->reset_peaks(base_.backend.ordinal);
  sample_residency();
  Statistics& statistics = base_.allocations->statistics;
  for (Level* level : {&statistics.requested_bytes, &statistics.reserved_bytes, &statistics.live, &resident_, &host_})
    level->reset_peak();
  for (Level& level : statistics.by_role) level.reset_peak();
  for (Level& level : resident_by_role_) level.reset_peak();
  for (Participant* const each : base_.participants.at_ops()) each->reset_peaks();
}

}  // namespace um
