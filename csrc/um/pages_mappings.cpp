#include "um/pages_mappings.h"

namespace um::pages {

// A read maps for writing too, unless a later write must be seen: to end a duplicate or to revoke a discard
// (uvm/uvm_va_block.c, compute_new_permission). What was only prefetched counts as read.
void Mappings::add_after_fault(Block& block, Processor who, const PageMask& pages, const PageMask& written) {
  PageMask writable = written;
  if (!block.policy->read_mostly) writable |= pages - block.discarded;
  const int by = index_of(who);
  const PageMask remote = pages - block.resident[by];
  if (!remote.empty()) pay_first(block);
  if (!(remote - block.read[by]).empty()) ++journal_.counters.shared.remote_maps;
  block.read[by] |= pages;
  block.write[by] |= writable;
  block.discarded -= writable;  // uvm_va_block_service_finish
  add_accessed_by(block, other(who), pages);
}

// AccessedBy maps wherever the page lies. Never under ReadMostly, and no remote mapping for the preferred location:
// both must fault (uvm/uvm_va_block.c, map_get_allowed_destinations; uvm/uvm_policy.c leaves discarded pages out).
void Mappings::add_accessed_by(Block& block, Processor who, const PageMask& pages) {
  if (!block.policy->accessed_by[index_of(who)]) return;
  const PageMask here = (pages & block.resident[index_of(who)]) - block.discarded;
  if (!block.policy->read_mostly) {
    block.read[index_of(who)] |= here;
    block.write[index_of(who)] |= here;
  }
  add_remote(block, who, pages);
}

void Mappings::add_remote(Block& block, Processor who, const PageMask& pages) {
  const Policy& policy = *block.policy;
  if (policy.read_mostly || policy.preferred == location_of(who) || !reaches(who, other(who))) return;
  const int by = index_of(who);
  const PageMask there = (pages & block.resident[index_of(other(who))]) - block.resident[by] - block.discarded;
  if (there.empty()) return;
  pay_first(block);
  if (!(there - block.read[by]).empty()) ++journal_.counters.shared.remote_maps;
  block.read[by] |= there;
  block.write[by] |= there;
}

void Mappings::pay_first(Block& block) {
  if (!block.mapped_once) journal_.spend(journal_.costs.first_map_ns);
  block.mapped_once = true;
}

}  // namespace um::pages
