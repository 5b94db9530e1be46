#include "devices/emulated/migrator.h"

#include <algorithm>
#include <cstring>

#include "devices/emulated/streaming_copy.h"

namespace um::emulated {

bool Migrator::hide(uint32_t index) {
  Block& block = blocks_[index];
  const Mapping now = block.mapping;
  if (now == Mapping::none) return true;
  const bool device = on_device(now);
  block.mapping = Mapping::none;
  const bool hidden = blocks_.mapper.hide(blocks_.tier(device), block.slot(device), blocks_.address_of(index));
  delays_.wait();
  return hidden;
}

bool Migrator::update_mapping(uint32_t index) {
  Block& block = blocks_[index];
  const Mapping now = block.mapping;
  const Mapping wanted = block.kind == Kind::managed ? model.mapping(index) : now;
  if (now == wanted) return true;
  bool done = true;
  if (on_device(now) == on_device(wanted) && now != Mapping::none && writable(wanted)) {
    done = blocks_.mapper.protect(blocks_.address_of(index), Mapper::Access::write);
  } else {
    done = hide(index);
    if (wanted != Mapping::none) {
      const bool device = on_device(wanted);
      delays_.wait();
      done = done &&
             blocks_.mapper.show(blocks_.tier(device), block.slot(device), blocks_.address_of(index), writable(wanted));
    }
  }
  block.mapping = wanted;
  return done;
}

bool Migrator::perform(const Action& action) {
  if (action.what != Do::evict_copy && action.what != Do::evict_drop) return move(action);
  const int64_t start_ns = link_.moment_ns();
  const bool done = move(action);
  room_ns_ += link_.moment_ns() - start_ns;
  return done;
}

bool Migrator::move(const Action& action) {
  Block& block = blocks_[action.block];
  EventRing& events = blocks_.events;
  const uint64_t address = blocks_.address_of(action.block);
  const int64_t start = events.on ? link_.now_ns() : 0;
  // Whoever still sees a copy must not store into it while it is copied, nor after it is given away.
  const bool seen_on_device = on_device(block.mapping);
  const bool stays_visible =
      (action.what == Do::drop_host && seen_on_device) || (action.what == Do::drop_device && !seen_on_device);
  if (!stays_visible && !hide(action.block)) return false;
  const bool needs_device = action.what == Do::zero_device || action.what == Do::copy_h2d;
  const bool needs_host = action.what == Do::zero_host || action.what == Do::copy_d2h || action.what == Do::evict_copy;
  if (needs_device && block.device_slot == 0) {
    const int64_t start_ns = link_.moment_ns();
    link_.take_place(blocks_.device_tier.slots() - blocks_.device_tier.taken());
    room_ns_ += link_.moment_ns() - start_ns;
  }
  link_.charge(action, needs_device && !block.had);
  block.had |= needs_device;
  if (needs_device && !blocks_.take_device_slot(action.block)) return false;
  if (needs_host && !blocks_.take_host_slot(action.block)) return false;
  const bool fresh = (needs_device && blocks_.device_tier.populate(block.slot(true))) ||
                     (needs_host && blocks_.host_tier.populate(block.slot(false)));
  // Both slots are there where both are asked for: what is copied lies somewhere.
  const auto device = [&] { return blocks_.device_tier.alias(block.slot(true)); };
  const auto host = [&] { return blocks_.host_tier.alias(block.slot(false)); };
  switch (action.what) {
    case Do::zero_device:
    case Do::zero_host:
      if (!fresh) std::memset(needs_device ? device() : host(), 0, kBlockBytes);
      break;
    case Do::copy_h2d:
      streaming_copy(device(), host(), kBlockBytes);
      events.push(UM_EVENT_TRANSFER_H2D, action.cause, address, kBlockBytes, start);
      break;
    case Do::copy_d2h:
    case Do::evict_copy:
      streaming_copy(host(), device(), kBlockBytes);
      events.push(UM_EVENT_TRANSFER_D2H, action.cause, address, kBlockBytes, start);
      break;
    case Do::evict_drop:
    case Do::drop_host:
    case Do::drop_device:
      break;
  }
  delays_.wait();
  const bool evicts = action.what == Do::evict_copy || action.what == Do::evict_drop;
  if (evicts)
    events.push(UM_EVENT_EVICTION, Cause::eviction, address, action.what == Do::evict_copy ? kBlockBytes : 0, start);
  if (evicts || action.what == Do::drop_device) {
    link_.leave_place();
    blocks_.give_device_slot(action.block);
  }
  if (action.what == Do::drop_host) blocks_.give_host_slot(action.block);
  return true;
}

bool Migrator::apply(const Outcome& outcome, uint32_t block) {
  bool done = true;
  for (int i = 0; i < outcome.count; ++i) done = done && perform(outcome.actions[i]);
  for (int i = 0; i < outcome.count; ++i) done = done && update_mapping(outcome.actions[i].block);
  return done && update_mapping(block);
}

// The chunk goes to other use than a managed block.
bool Migrator::evict(const Outcome& outcome) {
  link_.begin(link_.now_ns());
  bool done = true;
  for (int i = 0; i < outcome.count; ++i)
    done = perform(outcome.actions[i]) && update_mapping(outcome.actions[i].block) && done;
  return done;
}

bool Migrator::take_chunk() {
  bool done = true;
  if (!plain.take([this](const Outcome& outcome) { return evict(outcome); }, done)) return false;
  if (!done) plain.give();
  return done;
}

void Migrator::withhold_remnant() {
  plain.withhold_remnant([this](const Outcome& outcome) { return evict(outcome); });
}

int64_t Migrator::finish(uint32_t block) {
  const int64_t ready = std::max(blocks_[block].ready_ns.load(std::memory_order_relaxed), link_.at_ns());
  blocks_[block].ready_ns.store(ready, std::memory_order_relaxed);
  return ready;
}

}  // namespace um::emulated
