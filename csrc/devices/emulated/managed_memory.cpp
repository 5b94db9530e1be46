#include "devices/emulated/managed_memory.h"

#include <algorithm>

#include "um/driver_calls.h"

namespace um::emulated {

bool ManagedMemory::holds(uint64_t address, uint64_t bytes) {
  return bytes > 0 && blocks_.all(address, bytes, [](const Block& block) { return block.kind == Kind::managed; });
}

Service ManagedMemory::serve(uint32_t block, uint64_t address, bool write, bool unordered) {
  if (blocks_[block].kind != Kind::managed) return Service::not_ours;
  if (blocks_[block].covers(write)) return Service::served;  // another thread was first
  const int64_t start = link_.now_ns(), room_before_ns = migrator_.room_ns();
  link_.begin_fault(start);
  const Outcome outcome = migrator_.model.access(block, Processor::device, write);
  if (!migrator_.apply(outcome, block)) return Service::failed;
  link_.end_fault();
  const int64_t took_ns = std::max(link_.now_ns(), migrator_.finish(block)) - start;
  const int64_t room_ns = std::min(migrator_.room_ns() - room_before_ns, took_ns);
  room_ns_ += room_ns;
  (outcome.first_touch ? first_touch_ns_ : migration_ns_) += took_ns - room_ns;
  unordered_faults_ += unordered;
  EventRing& events = blocks_.events;
  events.push(UM_EVENT_FAULT_GROUP, Cause::coherence, address, kBlockBytes, start, write, unordered,
              outcome.first_touch);
  if (outcome.collapse) events.push(UM_EVENT_COLLAPSE, Cause::coherence, address, 0, start, write, unordered);
  if (outcome.remote_map) events.push(UM_EVENT_REMOTE_MAP, Cause::coherence, address, 0, start, write, unordered);
  return Service::served;
}

bool ManagedMemory::touch(uint64_t address, uint64_t bytes, bool write) {
  bool serviced = false;
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t piece, uint64_t) {
    if (!blocks_[block].covers(write)) {
      {
        const SpinGuard guard(blocks_.lock);
        serve(block, piece, write, false);
      }
      serviced = true;
      link_.wait_until(blocks_[block].ready_ns.load(std::memory_order_relaxed));
      return;
    }
    const int64_t ready_ns = blocks_[block].ready_ns.load(std::memory_order_relaxed), start_ns = link_.now_ns();
    if (ready_ns <= start_ns) return;
    link_.wait_until(ready_ns);
    const SpinGuard guard(blocks_.lock);
    prefetch_ns_ += link_.now_ns() - start_ns;
  });
  return serviced;
}

// The driver goes from block to block; the copies follow in the order in which the link takes them. In virtual time a
// stream does not stand for a thread that could wait: what comes is waited for by who touches it, what leaves by who
// takes its place.
void ManagedMemory::prefetch(uint64_t address, uint64_t bytes, Processor to) {
  Moment over(link_);
  int64_t driver_ns = link_.now_ns();
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    delays_.wait();
    const SpinGuard guard(blocks_.lock);
    if (blocks_[block].kind != Kind::managed) return;
    link_.begin(driver_ns);
    const bool there = migrator_.model.resident(block, to);
    link_.spend(there ? link_.costs().present_block_ns : link_.costs().prefetch_block_ns);
    driver_ns = link_.at_ns();
    calls::prefetch(migrator_.model, block, to,
                    [&](const Outcome& outcome, uint32_t of) { return migrator_.apply(outcome, of); });
    if (link_.at_ns() > driver_ns) migrator_.finish(block);  // something moved
    if (!link_.is_virtual()) over.ns = std::max(over.ns, link_.at_ns());
  });
}

void ManagedMemory::advise(uint64_t address, uint64_t bytes, Advice advice, Processor processor) {
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    Moment over(link_);
    const SpinGuard guard(blocks_.lock);
    if (blocks_[block].kind != Kind::managed) return;
    link_.begin(link_.now_ns());
    const bool populated = blocks_[block].device_slot != 0 || blocks_[block].host_slot != 0;
    if (advice == Advice::set_read_mostly && populated) link_.spend(link_.costs().read_mostly_block_ns);
    migrator_.apply(migrator_.model.advise(block, advice, processor), block);
    over.ns = migrator_.finish(block);
  });
}

void ManagedMemory::discard(uint64_t address, uint64_t bytes) {
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    const SpinGuard guard(blocks_.lock);
    if (blocks_[block].kind == Kind::managed && calls::discard(migrator_.model, block, piece))
      migrator_.update_mapping(block);
  });
}

bool ManagedMemory::pin(uint64_t address, uint64_t bytes) {
  uint64_t pinned = 0;
  bool fits = true;
  {
    const SpinGuard guard(blocks_.lock);
    migrator_.plain.return_remnant();
  }
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    if (!fits) return;
    Moment over(link_);
    const SpinGuard guard(blocks_.lock);
    if (blocks_[block].kind == Kind::plain) {
      pinned += piece;
      return;
    }
    link_.begin(link_.now_ns());
    fits = blocks_[block].kind == Kind::managed &&
           calls::pin(migrator_.model, block,
                      [&](const Outcome& outcome, uint32_t of) { return migrator_.apply(outcome, of); });
    if (!fits) return;
    pinned += piece;
    over.ns = migrator_.finish(block);
  });
  if (!fits) unpin(address, pinned);
  const SpinGuard guard(blocks_.lock);
  migrator_.withhold_remnant();
  return fits;
}

void ManagedMemory::unpin(uint64_t address, uint64_t bytes) {
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    const SpinGuard guard(blocks_.lock);
    if (blocks_[block].kind == Kind::managed) migrator_.model.chunks.unpin(block);
  });
  const SpinGuard guard(blocks_.lock);
  migrator_.withhold_remnant();
}

void ManagedMemory::charge_call(int64_t um_driver_costs::* cost) {
  Moment over(link_);
  const SpinGuard guard(blocks_.lock);
  link_.begin(link_.now_ns());
  link_.spend(link_.costs().*cost);
  over.ns = link_.at_ns();
}

void ManagedMemory::tell(driver::DeviceTotals& totals) const {
  totals.model = migrator_.model.counters();
  totals.unordered_faults = unordered_faults_;
  totals.stood = stood();
}

driver::StallTimes ManagedMemory::stood() const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  return {first_touch_ns_.load(kRelaxed), migration_ns_.load(kRelaxed), room_ns_.load(kRelaxed),
          prefetch_ns_.load(kRelaxed)};
}

}  // namespace um::emulated
