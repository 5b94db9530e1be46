#include "devices/simulated/managed_memory.h"

#include <algorithm>

#include "um/driver_calls.h"

namespace um::simulator {

bool ManagedMemory::covered(uint32_t block, bool write) const {
  if (blocks_[block].kind == Kind::plain) return true;
  const Mapping now = migrator_.model.mapping(block);
  return write ? now == Mapping::device_write || now == Mapping::remote_write : now != Mapping::none;
}

bool ManagedMemory::serve(uint32_t index, bool write) {
  if (covered(index, write)) return false;
  migrator_.serve(migrator_.model.access(index, Processor::device, write), index);
  return true;
}

bool ManagedMemory::touch(uint64_t address, uint64_t bytes, bool write) {
  bool serviced = false;
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) { serviced |= serve(block, write); });
  return serviced;
}

void ManagedMemory::fault(uint64_t address, bool write) {
  if (blocks_.managed(address, 1) && serve(blocks_.index_of(address), write)) unordered_faults_ += ordered_;
}

void ManagedMemory::prefetch(uint64_t address, uint64_t bytes, Processor to) {
  if (migrator_.clock != nullptr) migrator_.clock->call(migrator_.clock->costs().prefetch_call_ns);
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    if (blocks_[block].kind != Kind::managed) return;
    calls::prefetch(migrator_.model, block, to,
                    [&](const Outcome& outcome, uint32_t of) { return migrator_.migrate(outcome, of); });
  });
  migrator_.end_migration();
}

void ManagedMemory::advise(uint64_t address, uint64_t bytes, Advice advice, Processor processor) {
  int64_t populated = 0, count = 0;
  blocks_.each_piece(address, bytes, [&](uint32_t index, uint64_t, uint64_t) {
    BlockTable::Block& block = blocks_[index];
    if (block.kind != Kind::managed) return;
    ++count;
    populated += block.on_device || block.on_host;
    if (advice == Advice::set_preferred_location) block.preferred_here = processor == Processor::device;
    if (advice == Advice::unset_preferred_location) block.preferred_here = false;
    blocks_.follow(migrator_.model.advise(index, advice, processor));
  });
  if (migrator_.clock == nullptr) return;
  const um_pages_costs& costs = migrator_.clock->costs();
  const bool walks = advice == Advice::set_read_mostly, maps = advice == Advice::set_accessed_by;
  migrator_.clock->advise_call(costs.advise_call_ns + (walks ? populated * costs.read_mostly_block_ns : 0) +
                               (maps ? count * costs.accessed_by_block_ns : 0));
}

void ManagedMemory::discard(uint64_t address, uint64_t bytes) {
  int64_t discarded = 0;
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    if (blocks_[block].kind == Kind::managed) discarded += calls::discard(migrator_.model, block, piece);
  });
  if (migrator_.clock == nullptr) return;
  const um_pages_costs& costs = migrator_.clock->costs();  // each block is unmapped under its lock, as in a prefetch
  migrator_.clock->call(costs.prefetch_call_ns + discarded * costs.block_ns);
}

bool ManagedMemory::pin(uint64_t address, uint64_t bytes) {
  migrator_.plain.return_remnant();
  uint64_t pinned = 0;
  bool fits = true;
  const auto apply = [&](const Outcome& outcome, uint32_t of) { return migrator_.migrate(outcome, of); };
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    fits = fits && (blocks_[block].kind == Kind::plain || calls::pin(migrator_.model, block, apply));
    if (fits) pinned += piece;
  });
  if (!fits) {
    unpin(address, pinned);
    return false;
  }
  migrator_.withhold_remnant();
  migrator_.end_migration();
  return true;
}

void ManagedMemory::unpin(uint64_t address, uint64_t bytes) {
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    if (blocks_[block].kind == Kind::managed) migrator_.model.chunks.unpin(block);
  });
  migrator_.withhold_remnant();
  migrator_.end_migration();
}

void ManagedMemory::store(uint64_t address, uint64_t bytes) {
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    if (blocks_[block].kind != Kind::managed) return;
    calls::open_for_store(migrator_.model, block,
                          [&](const Outcome& outcome, uint32_t of) { return migrator_.migrate(outcome, of); });
  });
  migrator_.end_migration();
  if (migrator_.clock != nullptr) migrator_.clock->copy(0, static_cast<int64_t>(bytes));
}

// What the host holds already does not cross the link.
void ManagedMemory::load(uint64_t address, uint64_t bytes) {
  uint64_t crossing = 0;
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    if (blocks_[block].on_device && !blocks_[block].on_host) crossing += piece;
  });
  if (migrator_.clock != nullptr) migrator_.clock->copy(1, static_cast<int64_t>(crossing));
}

void ManagedMemory::note_use(uint64_t address, uint64_t bytes) {
  const bool waits = migrator_.arriving(), remote = migrator_.model.counters().remote_maps > 0;
  if (!waits && !remote) return;
  int64_t remote_bytes = 0, accesses = 0, ready_ns = 0;
  blocks_.each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t piece) {
    ready_ns = std::max(ready_ns, blocks_[block].ready_ns);
    const Mapping now = blocks_[block].kind == Kind::managed ? migrator_.model.mapping(block) : Mapping::none;
    if (now != Mapping::remote_read && now != Mapping::remote_write) return;
    remote_bytes += static_cast<int64_t>(piece);
    ++accesses;
  });
  if (ready_ns > migrator_.clock->now_ns()) migrator_.clock->wait_for(ready_ns);
  if (accesses > 0) migrator_.clock->access_remotely(remote_bytes, accesses);
}

}  // namespace um::simulator
