#include "um/model.h"

// `uvm/<file>` cites NVIDIA/open-gpu-kernel-modules 595.45.04, kernel-open/nvidia-uvm. One device behind PCIe: it can
// map host memory, the host cannot map device memory (uvm/uvm_va_block.c, accessible_from).

namespace um {

using rules::Location;
using rules::Rights;

namespace {

bool device_may(const rules::Block& block, bool write) {
  return block.device_rights == Rights::write || (!write && block.device_rights == Rights::read);
}

// The host maps its own copy; not for writing while the device has one too, nor while a write would revoke a discard.
bool host_may(const rules::Block& block, bool write) {
  return block.on_host && (!write || (!block.on_device && !block.discarded));
}

// Where a device fault puts the page, first match wins (uvm/uvm_va_block.c, block_select_processor_residency; its
// thrashing, access-counter and atomics rules have no place here). A host fault needs no choice: the host reaches
// host memory only.
Processor device_fault_residency(const rules::Block& block) {
  if (block.read_mostly) return Processor::device;  // a copy for a read, the only holder for a write
  if (block.preferred == Location::device) return Processor::device;
  if (block.resident_nowhere()) return block.preferred == Location::host ? Processor::host : Processor::device;
  if (block.on_device) return Processor::device;
  if (block.accessed_by_device) return Processor::host;
  if (block.preferred == Location::host) return Processor::host;
  return Processor::device;
}

// The mapping that a device fault gives. A read maps for writing too, so that no second fault is needed, unless a later
// write must be seen: to end a duplicate or to revoke a discard (uvm/uvm_va_block.c, compute_new_permission).
Rights rights_after_fault(const rules::Block& block, bool write) {
  return write || !(block.read_mostly || block.discarded) ? Rights::write : Rights::read;
}

}  // namespace

void Model::allocate(uint32_t first, uint32_t count) {
  for (uint32_t block = first; block < first + count; ++block) blocks_[block].allocated = true;
}

void Model::release(uint32_t index) {
  if (blocks_[index].on_device) chunks.leave(index);
  blocks_[index] = rules::Block{};
}

Mapping Model::mapping(uint32_t block) const {
  const rules::Block& now = blocks_[block];
  if (now.device_rights == Rights::none) return Mapping::none;
  const bool write = now.device_rights == Rights::write;
  if (now.on_device) return write ? Mapping::device_write : Mapping::device_read;
  return write ? Mapping::remote_write : Mapping::remote_read;
}

// ---- faults ---------------------------------------------------------------------------------------------------------

Outcome Model::access(uint32_t block, Processor processor, bool write) {
  const rules::Block& now = blocks_[block];
  if (processor == Processor::device) return device_may(now, write) ? Outcome{} : device_fault(block, write);
  return host_may(now, write) ? Outcome{} : host_fault(block, write);
}

Outcome Model::device_fault(uint32_t index, bool write) {
  rules::Block& block = blocks_[index];
  Outcome outcome;
  outcome.fault = true;
  ++counters_.fault_groups;
  note(block, write, outcome);
  const bool local = device_fault_residency(block) == Processor::device && (block.on_device || make_room(outcome));
  if (local) {
    if (!block.on_device) fill_device(index, Cause::coherence, outcome);
    const bool duplicate = block.read_mostly && !write;
    if (block.on_host && !duplicate) drop_host(index, Cause::coherence, outcome);
  } else {
    // By policy, or because no chunk can be had (uvm/uvm_types.h, UvmEventMapRemoteCauseOutOfMemory).
    if (!block.on_host) fill_host(index, Cause::coherence, outcome);
    outcome.remote_map = block.device_rights == Rights::none;
    if (outcome.remote_map) ++counters_.remote_maps;
  }
  if (write) block.discarded = false;  // uvm/uvm_va_block.c, uvm_va_block_service_finish
  block.device_rights = rights_after_fault(block, write);
  if (local) chunks.mark_used(index);
  return outcome;
}

// The page comes to the host whatever the advice says; under ReadMostly a read leaves the device its copy. That copy's
// place in the eviction order does not change: nothing was made resident on the device.
Outcome Model::host_fault(uint32_t index, bool write) {
  rules::Block& block = blocks_[index];
  Outcome outcome;
  outcome.fault = true;
  ++counters_.host_fault_groups;
  note(block, write, outcome);
  if (!block.on_host) fill_host(index, Cause::coherence, outcome);
  share_or_leave_device(index, block.read_mostly && !write, Cause::coherence, outcome);
  if (write) block.discarded = false;
  outcome.remote_map = map_accessed_by(index);  // uvm/uvm_va_block.c, uvm_va_block_add_mappings_after_migration
  return outcome;
}

// ---- prefetch and discard -------------------------------------------------------------------------------------------

// The user's migration goes where it is told, whatever location is preferred, and revokes the discard; a ReadMostly
// page is copied, a discarded ReadMostly page collapses to its preferred location (uvm/uvm_migrate.c,
// uvm_va_block_migrate_locked). Nothing happens when no chunk can be had.
Outcome Model::prefetch(uint32_t index, Processor to) {
  rules::Block& block = blocks_[index];
  Outcome outcome;
  const bool duplicate = block.read_mostly && !block.discarded;
  bool to_device = to == Processor::device;
  if (block.read_mostly && block.discarded && block.preferred != Location::none) {
    to_device = block.preferred == Location::device;
  }
  if (to_device && !block.on_device && !make_room(outcome)) return outcome;
  note(block, false, outcome);
  if (to_device) {
    if (!block.on_device) fill_device(index, Cause::user, outcome);
    if (block.on_host && !duplicate) drop_host(index, Cause::user, outcome);
    block.discarded = false;
    // Only what is not mapped is mapped, as far as no other copy forbids it (block_migrate_add_mappings).
    if (block.device_rights == Rights::none) block.device_rights = block.on_host ? Rights::read : Rights::write;
    chunks.mark_used(index);  // also when nothing moved: a repeated prefetch refreshes the order
  } else {
    if (!block.on_host) fill_host(index, Cause::user, outcome);
    share_or_leave_device(index, duplicate, Cause::user, outcome);
    block.discarded = false;
    outcome.remote_map = map_accessed_by(index);
  }
  return outcome;
}

// Mappings go, so that a write is seen and revokes the discard; the chunk is now among the first to be evicted
// (uvm/uvm_va_block.c, va_block_discard_locked with UVM_DISCARD_FLAGS_UNMAP). Unlike there, residency stays as it is
// and a duplicate collapses only when it is next written or migrated, so that no chunk is given up without an action.
void Model::discard(uint32_t index) {
  rules::Block& block = blocks_[index];
  block.discarded = true;
  block.device_rights = Rights::none;
  if (block.on_device) chunks.mark_used(index);
}

// ---- advice ---------------------------------------------------------------------------------------------------------

Outcome Model::advise(uint32_t block, Advice advice, Processor processor) {
  Outcome outcome;
  const bool device = processor == Processor::device;
  const Location location = device ? Location::device : Location::host;
  switch (advice) {
    case Advice::set_read_mostly:
      set_read_mostly(block);
      break;
    case Advice::unset_read_mostly:
      unset_read_mostly(block, outcome);
      break;
    case Advice::set_preferred_location:
      set_preferred_location(block, location, outcome);
      break;
    case Advice::unset_preferred_location:
      set_preferred_location(block, Location::none, outcome);
      break;
    case Advice::set_accessed_by:
      if (!device) break;
      blocks_[block].accessed_by_device = true;
      outcome.remote_map = map_accessed_by(block);  // uvm/uvm_policy.c, accessed_by_set
      break;
    case Advice::unset_accessed_by:  // a mapping stays until the page moves (uvm/uvm_va_range.c)
      if (device) blocks_[block].accessed_by_device = false;
      break;
  }
  return outcome;
}

// Populated blocks are walked: write access and remote mappings go, so that every processor faults for its own copy,
// and the walk counts as a service (uvm/uvm_policy.c, va_block_set_read_duplication_locked).
void Model::set_read_mostly(uint32_t index) {
  rules::Block& block = blocks_[index];
  if (block.read_mostly) return;
  block.read_mostly = true;
  if (!block.on_device) {
    block.device_rights = Rights::none;
    return;
  }
  if (block.device_rights == Rights::write) block.device_rights = Rights::read;
  chunks.mark_used(index);
}

// A duplicate keeps one copy: the preferred location's, else the host's, which comes first in the walk; then AccessedBy
// mappings are back (uvm/uvm_policy.c, va_block_unset_read_duplication_locked).
void Model::unset_read_mostly(uint32_t index, Outcome& outcome) {
  rules::Block& block = blocks_[index];
  if (!block.read_mostly) return;
  block.read_mostly = false;
  if (block.duplicated()) {
    if (block.preferred == Location::device) {
      drop_host(index, Cause::user, outcome);
      chunks.mark_used(index);
    } else {
      drop_device(index, Cause::user, outcome);
    }
  }
  outcome.remote_map = map_accessed_by(index);
}

// Policy only, nothing moves. The former preferred location may be mapped remotely again, the new one no longer
// (uvm/uvm_va_range.c, uvm_va_range_set_preferred_location; uvm/uvm_policy.c, preferred_location_unmap_remote_pages).
void Model::set_preferred_location(uint32_t index, Location location, Outcome& outcome) {
  rules::Block& block = blocks_[index];
  if (block.preferred == location) return;
  const Location former = block.preferred;
  block.preferred = location;
  if (former == Location::device) outcome.remote_map = map_accessed_by(index);
  if (location == Location::device && !block.on_device && !block.read_mostly) block.device_rights = Rights::none;
}

// AccessedBy is an eager mapping of wherever the page lies (uvm/uvm_policy.c, uvm_va_block_set_accessed_by_locked,
// which leaves discarded pages out). Never under ReadMostly, and no remote one on the preferred location: both must
// fault (uvm/uvm_va_block.c, map_get_allowed_destinations). True when it is a new remote mapping.
bool Model::map_accessed_by(uint32_t index) {
  rules::Block& block = blocks_[index];
  if (!block.accessed_by_device || block.read_mostly || block.discarded || block.resident_nowhere()) return false;
  if (!block.on_device && block.preferred == Location::device) return false;
  const bool remote = !block.on_device && block.device_rights == Rights::none;
  block.device_rights = Rights::write;
  if (remote) ++counters_.remote_maps;
  return remote;
}

// ---- chunks ---------------------------------------------------------------------------------------------------------

// A free chunk, else the first of the eviction order (uvm/uvm_pmm_gpu.c, pick_root_chunk_to_evict). False when every
// chunk is pinned or plain.
bool Model::make_room(Outcome& outcome) {
  if (chunks.free() > 0) return true;
  const uint32_t victim = chunks.next_victim();
  if (victim == Model::kNone) return false;
  evict(victim, outcome);
  return true;
}

// There is no dirty bit: contents are copied back unless a duplicate on the host is valid or they are discarded
// (uvm/uvm_va_block.c, uvm_va_block_evict_chunks). AccessedBy maps again afterwards (block_add_eviction_mappings, which
// the driver defers to a work queue). The preferred location protects nobody.
void Model::evict(uint32_t index, Outcome& outcome) {
  rules::Block& block = blocks_[index];
  const bool copy = !block.on_host && !block.discarded;
  add(outcome, copy ? Do::evict_copy : Do::evict_drop, Cause::eviction, index);
  ++(copy ? counters_.evictions : counters_.evictions_dropped);
  chunks.leave(index);
  if (copy) block.on_host = true;
  map_accessed_by(index);
}

// Memory that is not managed can push managed pages out, never the reverse (uvm/uvm_pmm_gpu.c, eviction for PMA).
bool Model::take_chunk(Outcome& outcome) {
  if (!make_room(outcome)) return false;
  chunks.take_plain();
  return true;
}

// ---- copies ---------------------------------------------------------------------------------------------------------

void Model::add(Outcome& outcome, Do what, Cause cause, uint32_t index) {
  outcome.actions[outcome.count++] = {what, cause, index};
  const int64_t bytes = static_cast<int64_t>(kBlockBytes);
  if (what == Do::copy_h2d) counters_.bytes_h2d[static_cast<int>(cause)] += bytes;
  if (what == Do::copy_d2h || what == Do::evict_copy) counters_.bytes_d2h[static_cast<int>(cause)] += bytes;
}

// A chunk, filled. Mappings of the old place are gone by then (uvm/uvm_va_block.c, uvm_va_block_make_resident_copy,
// block_prep_read_duplicate_mapping). Discarded contents are never copied (same file, block_copy_resident_pages); a new
// chunk without contents is zeroed (block_zero_new_gpu_chunk).
void Model::fill_device(uint32_t index, Cause cause, Outcome& outcome) {
  rules::Block& block = blocks_[index];
  add(outcome, block.on_host && !block.discarded ? Do::copy_h2d : Do::zero_device, cause, index);
  chunks.take(index);
}

void Model::fill_host(uint32_t index, Cause cause, Outcome& outcome) {
  rules::Block& block = blocks_[index];
  add(outcome, block.on_device && !block.discarded ? Do::copy_d2h : Do::zero_host, cause, index);
  block.on_host = true;
}

void Model::drop_device(uint32_t index, Cause cause, Outcome& outcome) {
  add(outcome, Do::drop_device, cause, index);
  chunks.leave(index);
}

void Model::drop_host(uint32_t index, Cause cause, Outcome& outcome) {
  add(outcome, Do::drop_host, cause, index);
  blocks_[index].on_host = false;
}

// The host has a copy now: the device's goes, or stays for reading only (uvm/uvm_va_block.c,
// block_prep_read_duplicate_mapping revokes its write access).
void Model::share_or_leave_device(uint32_t index, bool duplicate, Cause cause, Outcome& outcome) {
  rules::Block& block = blocks_[index];
  if (!block.on_device) return;
  if (!duplicate) return drop_device(index, cause, outcome);
  if (block.device_rights == Rights::write) block.device_rights = Rights::read;
}

void Model::note(const rules::Block& block, bool write, Outcome& outcome) {
  outcome.first_touch = block.resident_nowhere();
  outcome.collapse = write && block.duplicated();
  if (outcome.first_touch) ++counters_.first_touches;
  if (outcome.collapse) ++counters_.collapses;
}

}  // namespace um
