// What happened on a device: events, counters, statistics.
#include <algorithm>

#include "engine/counters.h"
#include "engine/device.h"

namespace {

constexpr uint64_t kEventsAtATime = 64;

// Live allocations in the 2 MiB block at `address` beside the one given, as far as a byte can count.
uint8_t neighbours(const um::Arena& arena, uint64_t address, const um::Block* than) {
  const uint64_t start = address / um::kBlockBytes * um::kBlockBytes;
  uint8_t others = 0;
  for (const um::Block* each = arena.nearest(start);
       each != nullptr && each->address < start + um::kBlockBytes && others < UINT8_MAX; each = each->next) {
    others = static_cast<uint8_t>(others + (!each->free && each != than));
  }
  return others;
}

}  // namespace

um_event um_device::attribute(const um::emulated::Event& from, const um::OpIdentity& op) const {
  um_event event{};
  event.start_ns = from.start_ns;
  event.duration_ns = from.duration_ns;
  event.address = from.address;
  event.bytes = from.bytes;
  event.kind = static_cast<uint16_t>(from.kind);
  event.cause = static_cast<uint16_t>(from.cause);
  event.write = from.write;
  event.unordered = from.unordered;
  event.first_touch = from.first_touch;
  um::tell_of(op, &event);
  const um::Arena* arena = own_arena(from.address);
  if (arena == nullptr) return event;
  // A whole block moved: it is about the first allocation in it, where its own start belongs to none.
  if (const um::Block* block = arena->nearest(from.address)) {
    um::tell_of(block->record, &event);
    event.neighbours = neighbours(*arena, from.address, block);
  }
  return event;
}

void um_device::collect_device_events() noexcept {
  if (residency_ == nullptr) return;
  um::emulated::Event events[kEventsAtATime];
  while (backend_.hooks->pending(backend_.ordinal)) {
    const uint64_t count = backend_.hooks->drain(backend_.ordinal, events, kEventsAtATime);
    for (uint64_t i = 0; i < count; ++i) {
      const um::OpIdentity op = contexts_.find(events[i].context);
      follow(events[i], op);
      if (events[i].change != um::emulated::Change::none) continue;
      events_.push(attribute(events[i], op));
      record_service(events[i], op.index != 0);
    }
  }
}

uint64_t um_device::drain_events(um_event* out, uint64_t capacity) {
  const Lock lock(mutex_);
  if (allocations_ != nullptr) collect_device_events();
  return events_.drain(out, capacity);
}

uint64_t um_device::dropped_events() {
  const Lock lock(mutex_);
  const bool asks = backend_.hooks != nullptr && allocations_ != nullptr;
  return events_.dropped() + (asks ? backend_.hooks->dropped(backend_.ordinal) : 0);
}

void um_device::enable_events(bool on) {
  const Lock lock = lock_alive();
  if (on == recording_) return;
  collect_device_events();
  auto residency = on && backend_.hooks != nullptr ? std::make_unique<um::Residency>() : nullptr;
  if (backend_.hooks != nullptr) backend_.hooks->record(backend_.ordinal, on);
  recording_ = swap_events_.on = on;
  residency_ = std::move(residency);
  if (residency_ != nullptr) recount_residency();
}

void um_device::counters(um_counters* out) {
  const Lock lock = lock_alive();
  um::forget(out);
  out->op_count = op_count_;
  out->oversized_ops = oversized_ops_;
  if (sampling_ != nullptr) sampling_->fill(out);
  if (backend_.hooks == nullptr) return;
  const um::emulated::Totals totals = backend_.totals();
  um::fill(totals.model, out);
  out->unordered_faults = totals.unordered_faults;
  out->fault_service_ns = totals.fault_service_ns;
}

// The emulated device knows; on CUDA a budget's model does, and without one all that is reserved may be there.
void um_device::sample_residency() {
  if (backend_.hooks != nullptr) {
    const um::emulated::Totals totals = backend_.totals();
    resident_ = {totals.device_bytes, totals.device_peak_bytes};  // it sees every page that comes, not just samples
    host_.set(totals.host_bytes);
    for (int role = 0; role < UM_ROLE_COUNT; ++role) {
      resident_by_role_[role] = {totals.tag_bytes[role], totals.tag_peak_bytes[role]};
    }
    return;
  }
  const uint64_t reserved_bytes = allocations_->statistics.reserved_bytes.now;
  const uint64_t managed_bytes = reserved_bytes - allocations_->plain_bytes();
  const uint64_t resident_bytes =
      budget_ != nullptr ? std::min(budget_->resident_bytes(), managed_bytes) : managed_bytes;
  resident_.set(std::min(backend_.total_bytes, allocations_->plain_bytes() + resident_bytes));
  host_.set(reserved_bytes - resident_.now);
  for (int role = 0; role < UM_ROLE_COUNT; ++role) {
    resident_by_role_[role].set(std::min(allocations_->statistics.reserved_by_role[role], resident_.now));
  }
}

void um_device::memory(um_memory_stats* out) {
  const Lock lock = lock_alive();
  sample_residency();
  const um::Statistics& statistics = allocations_->statistics;
  *out = {};
  statistics.requested_bytes.tell(&out->requested_bytes, &out->requested_peak_bytes);
  statistics.reserved_bytes.tell(&out->reserved_bytes, &out->reserved_peak_bytes);
  resident_.tell(&out->resident_bytes, &out->resident_peak_bytes);
  host_.tell(&out->host_bytes, &out->host_peak_bytes);
  if (chunked_ != nullptr) {  // managed memory and chunks are seldom there together: then the peak is at most this
    out->host_bytes += chunked_->host_in_use().now * chunked_->chunk_bytes();
    out->host_peak_bytes += chunked_->host_in_use().peak * chunked_->chunk_bytes();
  }
  out->allocation_count = statistics.allocation_count;
  out->free_count = statistics.free_count;
  out->live_allocations = statistics.live_allocations();
  for (int role = 0; role < UM_ROLE_COUNT; ++role) {
    statistics.by_role[role].tell(&out->requested_by_role[role], &out->requested_peak_by_role[role]);
    resident_by_role_[role].tell(&out->resident_by_role[role], &out->resident_peak_by_role[role]);
  }
  allocations_->each_block([&](const um::Block& block) {
    if (!block.record.seen) out->workspace_bytes += block.record.bytes;
  });
}

um_memory_history um_device::memory_history() {
  const Lock lock = lock_alive();
  const um::Statistics& statistics = allocations_->statistics;
  return {statistics.live.peak, statistics.requested_total_bytes, statistics.failure_count, statistics.exports_ended};
}

uint64_t um_device::placed(um_placed* out, uint64_t capacity) {
  const Lock lock = lock_alive();
  uint64_t count = 0;
  for (uint32_t role = 0; role < UM_ROLE_COUNT; ++role) {
    for (uint32_t memory = 0; memory <= UM_MEMORY_CHUNKED; ++memory) {
      for (uint32_t advice = 0; advice < UM_ADVICE_COUNT; ++advice) {
        const uint64_t bytes = allocations_->statistics.placed_bytes[role][memory][advice];
        if (bytes == 0) continue;
        if (count < capacity) out[count] = {role, memory, advice, 0, bytes};
        ++count;
      }
    }
  }
  return count;
}

void um_device::reset_peaks() {
  const Lock lock = lock_alive();
  if (backend_.hooks != nullptr) backend_.hooks->reset_peaks(backend_.ordinal);
  sample_residency();
  um::Statistics& statistics = allocations_->statistics;
  for (um::Level* level :
       {&statistics.requested_bytes, &statistics.reserved_bytes, &statistics.live, &resident_, &host_})
    level->reset_peak();
  for (um::Level& level : statistics.by_role) level.reset_peak();
  for (um::Level& level : resident_by_role_) level.reset_peak();
  if (swapper_ != nullptr) {
    swapper_->used.reset_peak();
    chunked_->reset_peaks();
  }
  if (residency_ == nullptr) return;
  collect_device_events();
  if (residency_is_exact()) {
    residency_->reset_peaks();
  } else {
    recount_residency();
  }
}

// ---- residency by role, tensor and op ----------------------------------------------------------------------

// What was there before a block left, or after one came, was there while the op ran.
void um_device::follow(const um::emulated::Event& event, const um::OpIdentity& op) noexcept {
  using um::emulated::Change;
  if (event.change == Change::arrived) residency_->arrived(event.address, own_arena(event.address));
  residency_->note(op);
  if (event.change == Change::left) residency_->left(event.address, own_arena(event.address));
}

bool um_device::residency_is_exact() const {
  return residency_->known() && backend_.hooks->dropped(backend_.ordinal) == dropped_before_;
}

// From what is true now. News that is on its way says nothing new of the blocks that it is about, or what comes next.
void um_device::recount_residency() noexcept {
  residency_->clear();
  dropped_before_ = backend_.hooks->dropped(backend_.ordinal);
  allocations_->each_arena([&](const um::Arena& arena) {
    for (uint64_t at = arena.address(); at < arena.address() + arena.bytes(); at += um::kBlockBytes) {
      uint64_t on_device = 0, on_host = 0;
      backend_.hooks->residency(backend_.ordinal, at, um::kBlockBytes, &on_device, &on_host);
      if (on_device != 0) residency_->arrived(at, nullptr);  // nothing counts yet
    }
  });
  allocations_->each_block([&](um::Block& block) { residency_->add(&block); });
}

uint64_t um_device::residency(um_residency* out, uint64_t capacity) {
  const Lock lock = lock_alive();
  if (residency_ == nullptr) return 0;
  collect_device_events();
  return residency_is_exact() ? residency_->read(out, capacity) : 0;
}
