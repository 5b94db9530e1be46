#include "engine/observation.h"

#include <algorithm>

#include "base/clock.h"
#include "engine/device_base.h"

namespace um {
namespace {

constexpr uint64_t kEventsAtATime = 64;

// Counts the live allocations in the 2 MiB around `address` except the given one, up to 255.
uint8_t neighbours(const Arena& arena, uint64_t address, const Block* than) {
  const uint64_t start = address / kBlockBytes * kBlockBytes;
  uint8_t others = 0;
  for (const Block* each = arena.nearest(start);
       each != nullptr && each->address < start + kBlockBytes && others < UINT8_MAX; each = each->next) {
    others = static_cast<uint8_t>(others + (!each->free && each != than));
  }
  return others;
}

}  // namespace

void Observation::set(bool on) {
  if (on == swaps_.on) return;
  collect();
  const Backend& backend = base_.backend;
  swaps_.on = on;
  if (!backend.hooks->exact) return;
  on ? base_.participants.join(*this) : base_.participants.leave(*this);
  backend.hooks->record(backend.ordinal, on);
  set_context(contexts_.begin(swaps_.op));
  times_.set(on);
  swaps_.residency = on ? &residency_ : nullptr;
  on ? recount() : residency_.give_up();
}

void Observation::push(const um_event& event) noexcept {
  if (swaps_.on) log_.push(event);
}

uint64_t Observation::drain(um_event* out, uint64_t capacity) {
  collect();
  return log_.drain(out, capacity);
}

uint64_t Observation::waiting() {
  collect();
  return log_.size();
}

uint64_t Observation::dropped() const { return log_.dropped() + base_.backend.hooks->dropped(base_.backend.ordinal); }

void Observation::collect() noexcept {
  const Backend& backend = base_.backend;
  driver::DeviceEvent events[kEventsAtATime];
  while (swaps_.on && backend.hooks->pending(backend.ordinal)) {
    const uint64_t count = backend.hooks->drain(backend.ordinal, events, kEventsAtATime);
    for (uint64_t i = 0; i < count; ++i) {
      const OpIdentity op = contexts_.find(events[i].context);
      follow(events[i], op);
      if (events[i].change != driver::ResidencyChange::none) continue;
      log_.push(attribute(events[i], op));
      record(events[i], op.index != 0);
    }
  }
}

void Observation::set_context(uint64_t context) const noexcept {
  base_.backend.hooks->set_context(base_.backend.ordinal, context);
}

// In ordered counting, services of pages that the guard touched follow from the recorded accesses.
void Observation::record(const driver::DeviceEvent& event, bool inside) noexcept {
  if (!tape_.on() || event.kind != UM_EVENT_FAULT_GROUP) return;
  if (base_.backend.ordered() && !event.unordered) return;
  const Arena* arena = base_.own_arena(event.address);
  const Block* block = arena != nullptr ? arena->nearest(event.address) : nullptr;
  if (block == nullptr) return;
  tape_.happened(event.write ? UM_RECORDED_SERVICE_WRITE : UM_RECORDED_SERVICE_READ, *block,
                 event.address / kBlockBytes * kBlockBytes, 0, inside);
}

um_event Observation::attribute(const driver::DeviceEvent& from, const OpIdentity& op) const {
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
  tell_of(op, &event);
  const Arena* arena = base_.own_arena(from.address);
  if (arena == nullptr) return event;
  // The event is about a whole block. If no allocation starts there, the first one above is named.
  if (const Block* block = arena->nearest(from.address)) {
    tell_of(block->record, &event);
    event.neighbours = neighbours(*arena, from.address, block);
  }
  return event;
}

// ---- ops and allocations ---------------------------------------------------------------------------------------

// Events since the last op are attributed first, because they happened outside of ops.
void Observation::begin_op(RunningOp& op) {
  collect();
  set_context(contexts_.begin(op.identity));
  swaps_.note(op.identity);
}

void Observation::end_op(RunningOp& op) noexcept {
  collect();
  residency_.ran(op.identity, op.compute_ns);
  set_context(OpContexts::outside(base_.ops.step));
}

// The arenas may have changed. The allocation counts from now on.
void Observation::allocated(Block* block, const RunningOp* /*op*/) noexcept {
  collect();
  residency_.add(block);
}

// Pending events may be about this allocation, so they are attributed before it is freed.
void Observation::freed(Block* block) noexcept {
  collect();
  residency_.remove(block);
}

void Observation::tell_label(const Block& block) noexcept {
  um_event event{};
  event.start_ns = now_ns();
  event.kind = UM_EVENT_LABEL;
  event.step = base_.ops.step;
  tell_of(block.record, &event);
  push(event);
}

void Observation::reset_peaks() noexcept {
  collect();
  is_exact() ? residency_.reset_peaks() : recount();
}

// ---- residency by role, tensor and op --------------------------------------------------------------------------

// A block that was resident before it left, or after it arrived, counts as resident while the op ran.
void Observation::follow(const driver::DeviceEvent& event, const OpIdentity& op) noexcept {
  using driver::ResidencyChange;
  const Arena* const arena = base_.own_arena(event.address);
  if (arena != nullptr && arena->heap->placement.memory == UM_MEMORY_CHUNKED) return;  // the mover reports these moves
  if (event.change == ResidencyChange::arrived) residency_.arrived(event.address, arena);
  swaps_.note(op);
  if (event.change == ResidencyChange::left) residency_.left(event.address, arena);
}

bool Observation::is_exact() const {
  return residency_.known() && base_.backend.hooks->dropped(base_.backend.ordinal) == dropped_before_;
}

// Counts the present state. Pending events then change nothing for the blocks that they are about.
void Observation::recount() noexcept {
  const Backend& backend = base_.backend;
  residency_.clear();
  dropped_before_ = backend.hooks->dropped(backend.ordinal);
  base_.allocations->each_arena([&](const Arena& arena) {
    if (arena.heap->placement.memory == UM_MEMORY_CHUNKED) return;  // many addresses show one chunk
    for (uint64_t at = arena.address(); at < arena.address() + arena.bytes(); at += kBlockBytes) {
      uint64_t on_device = 0, on_host = 0;
      backend.hooks->residency(backend.ordinal, at, kBlockBytes, &on_device, &on_host);
      if (on_device != 0) residency_.arrived(at, nullptr);  // no allocation is followed yet
    }
  });
  base_.allocations->each_block([&](Block& block) {
    if (block.arena->heap->placement.memory == UM_MEMORY_CHUNKED) {
      if (notes(block).movable == nullptr || notes(block).movable->residence.range != nullptr)
        swaps_.placed(block, true);
    }
    residency_.add(&block);
  });
}

uint64_t Observation::residency(um_residency* out, uint64_t capacity) {
  collect();
  if (base_.backend.hooks->exact) return is_exact() ? residency_.read(out, capacity) : 0;
  const std::vector<um_residency>& ran = sampling_.ran();
  std::copy_n(ran.begin(), swaps_.on ? std::min<uint64_t>(capacity, ran.size()) : 0, out);
  return swaps_.on ? ran.size() : 0;
}

}  // namespace um
