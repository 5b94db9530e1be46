// Doing what um::Model says: data first, then page tables. All of it also runs inside the signal handler.
#include <cstring>

#include "devices/emulated/space.h"
#include "devices/emulated/streaming_copy.h"
#include "um/driver_calls.h"

namespace um::emulated {
namespace {

bool on_device(Mapping mapping) { return mapping == Mapping::device_read || mapping == Mapping::device_write; }
bool writable(Mapping mapping) { return mapping == Mapping::device_write || mapping == Mapping::remote_write; }

}  // namespace

void Space::push(um_event_kind kind, Cause cause, uint64_t address, uint64_t bytes, int64_t start_ns, bool write,
                 bool unordered, bool first_touch) {
  if (!events.on) return;
  const int64_t end_ns = std::max(now_ns(), link_.at_ns());
  events.push({start_ns, end_ns - start_ns, address, bytes, context.load(std::memory_order_relaxed), kind, cause, write,
               unordered, first_touch, Change::none});
}

void Space::push(Change change, const Block& block) {
  if (!events.on) return;
  Event event{};
  event.address = address_of(static_cast<uint32_t>(&block - &blocks_[0]));
  event.context = context.load(std::memory_order_relaxed);
  event.change = change;
  events.push(event);
}

bool Space::take_device_slot(Block& block) {
  if (block.device_slot != 0) return true;
  block.device_slot = device_tier_.take() + 1;
  if (block.device_slot == 0) return false;  // kNoSlot + 1
  resident_.add(block.tag);
  push(Change::arrived, block);
  return true;
}

bool Space::take_host_slot(Block& block) {
  if (block.host_slot == 0) block.host_slot = host_tier_.take() + 1;
  return block.host_slot != 0;
}

void Space::give_device_slot(Block& block) {
  if (block.device_slot == 0) return;
  device_tier_.give(block.device_slot - 1);
  block.device_slot = 0;
  resident_.subtract(block.tag);
  push(Change::left, block);
}

void Space::give_host_slot(Block& block) {
  if (block.host_slot != 0) host_tier_.give(block.host_slot - 1);
  block.host_slot = 0;
}

bool Space::unmap(uint32_t index) {
  Block& block = blocks_[index];
  const auto now = static_cast<Mapping>(block.mapping.load());
  if (now == Mapping::none) return true;
  const bool device = on_device(now);
  block.mapping = static_cast<uint8_t>(Mapping::none);
  const bool hidden = mapper_.hide(device ? device_tier_ : host_tier_,
                                   (device ? block.device_slot : block.host_slot) - 1, address_of(index));
  delays.wait();
  return hidden;
}

// Brings the page tables in line with the model, once the data is where it must be.
bool Space::settle(uint32_t index) {
  Block& block = blocks_[index];
  const auto now = static_cast<Mapping>(block.mapping.load());
  const Mapping wanted = block.kind == Kind::managed ? model_.mapping(index) : now;
  if (now == wanted) return true;
  bool done = true;
  if (on_device(now) == on_device(wanted) && now != Mapping::none && writable(wanted)) {
    done = mapper_.protect(address_of(index), Mapper::Access::write);
  } else {
    done = unmap(index);
    if (wanted != Mapping::none) {
      const bool device = on_device(wanted);
      delays.wait();
      done =
          done && mapper_.show(device ? device_tier_ : host_tier_, (device ? block.device_slot : block.host_slot) - 1,
                               address_of(index), writable(wanted));
    }
  }
  block.mapping = static_cast<uint8_t>(wanted);
  return done;
}

bool Space::perform(const Action& action) {
  Block& block = blocks_[action.block];
  const uint64_t address = address_of(action.block);
  const int64_t start = events.on ? now_ns() : 0;
  // Whoever still sees a copy must not store into it while it is copied, nor after it is given away.
  const bool seen_on_device = on_device(static_cast<Mapping>(block.mapping.load()));
  const bool stays_visible =
      (action.what == Do::drop_host && seen_on_device) || (action.what == Do::drop_device && !seen_on_device);
  if (!stays_visible && !unmap(action.block)) return false;
  const bool needs_device = action.what == Do::zero_device || action.what == Do::copy_h2d;
  const bool needs_host = action.what == Do::zero_host || action.what == Do::copy_d2h || action.what == Do::evict_copy;
  link_.charge(action, needs_device && !block.had);
  block.had |= needs_device;
  if (needs_device && !take_device_slot(block)) return false;
  if (needs_host && !take_host_slot(block)) return false;
  const bool fresh = (needs_device && device_tier_.populate(block.device_slot - 1)) ||
                     (needs_host && host_tier_.populate(block.host_slot - 1));
  // Both slots are there where both are asked for: what is copied lies somewhere.
  const auto device = [&] { return device_tier_.alias(block.device_slot - 1); };
  const auto host = [&] { return host_tier_.alias(block.host_slot - 1); };
  switch (action.what) {
    case Do::zero_device:
    case Do::zero_host:
      if (!fresh) std::memset(needs_device ? device() : host(), 0, kBlockBytes);
      break;
    case Do::copy_h2d:
      streaming_copy(device(), host(), kBlockBytes);
      push(UM_EVENT_TRANSFER_H2D, action.cause, address, kBlockBytes, start);
      break;
    case Do::copy_d2h:
    case Do::evict_copy:
      streaming_copy(host(), device(), kBlockBytes);
      push(UM_EVENT_TRANSFER_D2H, action.cause, address, kBlockBytes, start);
      break;
    case Do::evict_drop:
    case Do::drop_host:
    case Do::drop_device:
      break;
  }
  delays.wait();
  const bool evicts = action.what == Do::evict_copy || action.what == Do::evict_drop;
  if (evicts) push(UM_EVENT_EVICTION, Cause::eviction, address, action.what == Do::evict_copy ? kBlockBytes : 0, start);
  if (evicts || action.what == Do::drop_device) give_device_slot(block);
  if (action.what == Do::drop_host) give_host_slot(block);
  return true;
}

bool Space::apply(const Outcome& outcome, uint32_t block) {
  bool done = true;
  for (int i = 0; i < outcome.count; ++i) done = done && perform(outcome.actions[i]);
  for (int i = 0; i < outcome.count; ++i) done = done && settle(outcome.actions[i].block);
  return done && settle(block);
}

// The chunk goes to other use than a managed block.
bool Space::evict(const Outcome& outcome) {
  link_.begin(now_ns());
  bool done = true;
  for (int i = 0; i < outcome.count; ++i)
    done = perform(outcome.actions[i]) && settle(outcome.actions[i].block) && done;
  return done;
}

// When the charged link is done with the present work on a block: nobody uses the block before.
int64_t Space::finish(uint32_t block) {
  const int64_t ready = std::max(blocks_[block].ready_ns.load(std::memory_order_relaxed), link_.at_ns());
  blocks_[block].ready_ns.store(ready, std::memory_order_relaxed);
  return ready;
}

bool Space::covered(uint32_t block, bool write) const {
  const auto now = static_cast<Mapping>(blocks_[block].mapping.load(std::memory_order_relaxed));
  return write ? writable(now) : now != Mapping::none;
}

// ---- service -----------------------------------------------------------------------------------------------

Service Space::serve(uint32_t block, uint64_t address, bool write, bool unordered) {
  if (blocks_[block].kind != Kind::managed) return Service::not_ours;
  if (covered(block, write)) return Service::served;  // another thread was first
  const int64_t start = now_ns();
  link_.begin_fault(start);
  const Outcome outcome = model_.access(block, Processor::device, write);
  if (!apply(outcome, block)) return Service::failed;
  link_.end_fault();
  fault_service_ns_ += std::max(now_ns(), finish(block)) - start;
  unordered_faults_ += unordered;
  push(UM_EVENT_FAULT_GROUP, Cause::coherence, address, kBlockBytes, start, write, unordered, outcome.first_touch);
  if (outcome.collapse) push(UM_EVENT_COLLAPSE, Cause::coherence, address, 0, start, write, unordered);
  if (outcome.remote_map) push(UM_EVENT_REMOTE_MAP, Cause::coherence, address, 0, start, write, unordered);
  return Service::served;
}

Service Space::fault(uint64_t address, bool write) {
  delays.wait();
  const uint32_t block = place_of(address).block;
  Moment over;
  const Guard guard(lock_);
  if (blocks_[block].kind == Kind::reserved) return ask_about(block, address, write);
  const Service service = serve(block, address, write, ordered_);
  over.ns = blocks_[block].ready_ns;
  return service;
}

bool Space::touch(uint64_t address, uint64_t bytes, bool write) {
  bool serviced = false;
  each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t) {
    if (!covered(block, write)) {
      const Guard guard(lock_);
      serve(block, piece, write, false);
      serviced = true;
    }
    wait_until(blocks_[block].ready_ns.load(std::memory_order_relaxed));
  });
  return serviced;
}

// The driver goes from block to block; the copies follow in the order in which the link takes them.
void Space::prefetch(uint64_t address, uint64_t bytes, Processor to) {
  Moment over;
  int64_t driver_ns = now_ns();
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    delays.wait();
    const Guard guard(lock_);
    if (blocks_[block].kind != Kind::managed) return;
    link_.begin(driver_ns);
    const bool there = model_.resident(block, to);
    link_.spend(there ? link_.costs().present_block_ns : link_.costs().prefetch_block_ns);
    driver_ns = link_.at_ns();
    calls::prefetch(model_, block, to, [&](const Outcome& outcome, uint32_t of) { return apply(outcome, of); });
    if (link_.at_ns() > driver_ns) finish(block);  // something moved
    over.ns = std::max(over.ns, link_.at_ns());
  });
}

void Space::advise(uint64_t address, uint64_t bytes, Advice advice, Processor processor) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    Moment over;
    const Guard guard(lock_);
    if (blocks_[block].kind != Kind::managed) return;
    link_.begin(now_ns());
    const bool populated = blocks_[block].device_slot != 0 || blocks_[block].host_slot != 0;
    if (advice == Advice::set_read_mostly && populated) link_.spend(link_.costs().read_mostly_block_ns);
    apply(model_.advise(block, advice, processor), block);
    over.ns = finish(block);
  });
}

void Space::discard(uint64_t address, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::managed && calls::discard(model_, block, piece)) settle(block);
  });
}

bool Space::pin(uint64_t address, uint64_t bytes) {
  uint64_t pinned = 0;
  bool fits = true;
  {
    const Guard guard(lock_);
    plain_.return_remnant();
  }
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    if (!fits) return;
    Moment over;
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::plain) {
      pinned += piece;
      return;
    }
    link_.begin(now_ns());
    fits = blocks_[block].kind == Kind::managed &&
           calls::pin(model_, block, [&](const Outcome& outcome, uint32_t of) { return apply(outcome, of); });
    if (!fits) return;
    pinned += piece;
    over.ns = finish(block);
  });
  if (!fits) unpin(address, pinned);
  const Guard guard(lock_);
  plain_.withhold_remnant([&](const Outcome& outcome) { return evict(outcome); });
  return fits;
}

void Space::unpin(uint64_t address, uint64_t bytes) {
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    const Guard guard(lock_);
    if (blocks_[block].kind == Kind::managed) model_.chunks.unpin(block);
  });
  const Guard guard(lock_);
  plain_.withhold_remnant([&](const Outcome& outcome) { return evict(outcome); });
}

}  // namespace um::emulated
