// Life of a block, and what is done to it without a fault: user migrations, discards, advice.
#include "um/pages_driver.h"

namespace um::pages {

Driver::Driver(const Machine& kind, const Costs& costs)
    : machine(kind),
      pages_per_block(static_cast<uint32_t>(kBlockBytes / machine.page_bytes)),
      journal(costs),
      chunks_(static_cast<uint32_t>(machine.device_bytes / kBlockBytes), pages_per_block),
      mappings_(machine, journal),
      thrashing_(journal, machine.coherent) {}

uint32_t Driver::add_block(uint64_t address, uint32_t pages, const Policy* policy) {
  uint32_t index = static_cast<uint32_t>(blocks_.size());
  if (vacant_.empty()) {
    blocks_.emplace_back();
  } else {
    index = vacant_.back();
    vacant_.pop_back();
    blocks_[index] = Block{};
  }
  Block& block = blocks_[index];
  block.address = address;
  block.pages = pages;
  block.valid.fill({0, pages});
  block.policy = policy;
  return index;
}

void Driver::release(uint32_t index) {
  Block& block = blocks_[index];
  if (block.root != kNone) chunks_.give_root(block.root);
  if (!block.backed.empty()) chunks_.give_pieces_of(index);
  block = Block{};
  vacant_.push_back(index);
}

// The user's migration goes where it is told, whatever location is preferred, and revokes the discard; ReadMostly
// pages are copied, discarded ones among them collapse to their preferred location (uvm/uvm_migrate.c,
// uvm_va_block_migrate_locked). Then the destination maps what nobody maps. Nothing happens without room.
void Driver::prefetch(uint32_t index, Processor to) {
  Block& block = blocks_[index];
  const Policy& policy = *block.policy;
  const PageMask kept = block.valid - block.discarded;
  // What is there already is looked at under its lock, as in a fault's service, and no more.
  const bool there = (block.valid - block.resident[index_of(to)]).empty();
  journal.spend(there ? journal.costs.block_ns : journal.costs.prefetch_block_ns);
  journal.copy_on_engines(true);
  if (to == Processor::host || populate(index, block.valid)) {
    if (policy.read_mostly) {
      if (!kept.empty()) make_resident(index, {to, kept, {}, kept, Cause::user, false});
      const Processor home = policy.preferred == Location::none ? to : processor_at(policy.preferred);
      if (!block.discarded.empty()) make_resident(index, {home, block.discarded, {}, {}, Cause::user, false});
    } else {
      make_resident(index, {to, block.valid, {}, {}, Cause::user, false});
    }
    block.discarded = {};
    const PageMask unmapped = block.resident[index_of(to)] - block.read[index_of(to)];
    const PageMask duplicates = block.resident[0] & block.resident[1];
    block.read[index_of(to)] |= unmapped;
    block.write[index_of(to)] |= unmapped - duplicates;
    mappings_.add_accessed_by(block, other(to), block.valid);
    if (to == Processor::device) mark_used(block);
  }
  chunks_.unpin_all();
  journal.copy_on_engines(false);
}

// Mappings and residency go; a chunk whose pages are all discarded is among the first to be evicted, without a copy
// (uvm/uvm_va_block.c, va_block_discard_locked with UVM_DISCARD_FLAGS_UNMAP).
void Driver::discard(uint32_t index) {
  Block& block = blocks_[index];
  block.discarded = block.valid;
  for (int by : {0, 1}) block.read[by] = block.write[by] = block.resident[by] = {};
  if (block.root != kNone) chunks_.refresh(block.root, rules::Queue::discarded);
}

// Write access and remote mappings go, so that every processor faults for its own copy; the walk over populated blocks
// is a service (uvm/uvm_policy.c, va_block_set_read_duplication_locked).
void Driver::read_mostly_set(uint32_t index) {
  Block& block = blocks_[index];
  if (block.anywhere().empty()) return;
  journal.spend(journal.costs.read_mostly_block_ns);
  for (int by : {0, 1}) {
    block.write[by] = {};
    block.read[by] &= block.resident[by];
  }
  if (!block.resident[index_of(Processor::device)].empty()) mark_used(block);
}

// Duplicates keep one copy: the preferred location's, else the host's, which comes first in the walk; then AccessedBy
// mappings are back (uvm/uvm_policy.c, va_block_unset_read_duplication_locked).
void Driver::read_mostly_unset(uint32_t index) {
  Block& block = blocks_[index];
  const PageMask duplicates = block.resident[0] & block.resident[1];
  if (!duplicates.empty()) {
    const Processor keeper = block.policy->preferred == Location::device ? Processor::device : Processor::host;
    make_resident(index, {keeper, duplicates, {}, {}, Cause::user, false});
  }
  for (Processor who : {Processor::host, Processor::device}) mappings_.add_accessed_by(block, who, block.valid);
}

// Policy only, nothing moves. The former preferred location may be mapped remotely again, the new one no longer
// (uvm/uvm_va_range.c, uvm_va_range_set_preferred_location; uvm/uvm_policy.c, preferred_location_unmap_remote_pages).
void Driver::preferred_location_changed(uint32_t index, Location former) {
  Block& block = blocks_[index];
  if (former != Location::none) mappings_.add_accessed_by(block, processor_at(former), block.valid);
  if (block.policy->preferred == Location::none || block.policy->read_mostly) return;
  const int by = index_of(processor_at(block.policy->preferred));
  block.read[by] &= block.resident[by];
  block.write[by] &= block.resident[by];
}

// Eager, block by block (uvm/uvm_policy.c, uvm_va_block_set_accessed_by_locked).
void Driver::accessed_by_set(uint32_t index, Processor who) {
  journal.spend(journal.costs.accessed_by_block_ns);
  mappings_.add_accessed_by(blocks_[index], who, blocks_[index].valid);
}

}  // namespace um::pages
