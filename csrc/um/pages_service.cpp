// Services of faults: who gets the pages, what comes along, what is mapped.
#include <algorithm>

#include "um/pages_driver.h"
#include "um/pages_tree.h"

namespace um::pages {
namespace {

constexpr uint32_t kBigPageBytes = 65536;  // UVM_BIG_PAGE_SIZE
// uvm_perf_access_counter_threshold: requests to one 2 MiB region until the device notifies.
constexpr uint32_t kAccessThreshold = 256;

}  // namespace

// uvm/uvm_gpu_replayable_faults.c, service_fault_batch_block_locked; uvm/uvm_va_block.c, uvm_va_block_service_locked.
PageMask Driver::service(uint32_t index, Processor who, const PageMask& asked, bool write, Cause cause) {
  Block& block = blocks_[index];
  const bool counted = cause == Cause::access_counter;
  PageMask faults = counted ? asked : asked - (write ? block.write : block.read)[index_of(who)];
  PageMask pinned[2], to[2];
  const PageMask throttled = throttle_or_pin(block, who, faults, pinned);
  if (faults.empty()) return throttled;
  choose(block, who, faults, counted, pinned, to);
  // Prefetches only where everything goes to one processor.
  const bool one_way = to[0].empty() || to[1].empty();
  if (who == Processor::device && !counted) {
    journal.fault_group(block.address, faults.count());
    journal.spend(journal.costs.block_ns);
  }
  for (Processor where : {Processor::host, Processor::device}) {
    const PageMask& going = to[index_of(where)];
    if (going.empty()) continue;
    const PageMask speculative = one_way ? speculate(block, where, going) : PageMask{};
    const PageMask pages = going | speculative;
    const PageMask written = write ? going : PageMask{};
    const PageMask duplicated = block.policy->read_mostly ? pages - written : PageMask{};
    make_resident(index, {where, pages, speculative, duplicated, cause, write});
    mappings_.add_after_fault(block, who, pages, written);
    if (block.root != kNone && block.discarded == block.valid) chunks_.refresh(block.root, rules::Queue::discarded);
  }
  chunks_.unpin_all();
  return throttled;
}

PageMask Driver::throttle_or_pin(Block& block, Processor who, PageMask& faults, PageMask (&pinned)[2]) {
  PageMask throttled;
  if (!block.thrashing || block.thrashing->pages.empty()) return throttled;
  (faults & block.anywhere()).each([&](uint32_t page) {
    const Processor resident = block.resident[index_of(who)].test(page) ? who : other(who);
    switch (thrashing_.verdict(block.thrashing.get(), page, who, block.policy->preferred, resident)) {
      case thrashing::Verdict::none:
        break;
      case thrashing::Verdict::throttle:
        throttled.set(page);
        break;
      case thrashing::Verdict::pin_host:
        pinned[index_of(Processor::host)].set(page);
        break;
      case thrashing::Verdict::pin_device:
        pinned[index_of(Processor::device)].set(page);
        break;
    }
  });
  faults -= throttled;
  return throttled;
}

// Where each page goes, first match wins (uvm/uvm_va_block.c, block_select_processor_residency).
void Driver::choose(const Block& block, Processor who, const PageMask& faults, bool counted,
                    const PageMask (&pinned)[2], PageMask (&to)[2]) const {
  const Policy& policy = *block.policy;
  const int self = index_of(who), there = index_of(other(who));
  if (policy.read_mostly || policy.preferred == location_of(who)) {
    to[self] = faults;
    return;
  }
  to[0] = pinned[0];
  to[1] = pinned[1];
  const PageMask free = faults - pinned[0] - pinned[1];
  const PageMask nowhere = free - block.anywhere();
  const PageMask local = free & block.resident[self];
  const PageMask remote = free - nowhere - local;
  const bool preferred_in_reach =
      policy.preferred != Location::none && mappings_.reaches(who, processor_at(policy.preferred));
  const int preferred = preferred_in_reach ? index_of(processor_at(policy.preferred)) : self;
  to[preferred] |= nowhere;
  to[self] |= local;
  to[policy.accessed_by[self] && mappings_.reaches(who, other(who)) && !counted ? there : preferred] |= remote;
}

// uvm/uvm_perf_prefetch.c, uvm_perf_prefetch_prenotify_fault_migrations
PageMask Driver::speculate(const Block& block, Processor to, const PageMask& faults) const {
  const Policy& policy = *block.policy;
  const PageMask thrashing = block.thrashing ? block.thrashing->thrashing : PageMask{};
  const PageMask& resident = block.resident[index_of(to)];
  PageMask brought;
  if (policy.preferred == location_of(to) && block.anywhere().empty()) {
    brought = block.valid - faults - thrashing;
  } else if (policy.preferred == Location::none || policy.preferred == location_of(to)) {
    const TreeBlock tree{block.pages, std::max(kBigPageBytes / machine.page_bytes, 1u)};
    brought = density_prefetch(tree, resident, faults, thrashing);
  }
  // Pages that the host has and maps would only be mapped once more.
  if (to == Processor::host) brought -= resident & block.read[index_of(to)];
  return brought;
}

// Access counters are on only where address translation is shared (uvm_perf_access_counter_migration_enable = -1). A
// notification asks for what the device maps remotely in the region (uvm/uvm_gpu_access_counters.c).
void Driver::access_remotely(uint32_t index, Processor who, uint64_t bytes) {
  const uint64_t requests = (bytes + kRequestBytes - 1) / kRequestBytes;
  journal.counters.remote_bytes += static_cast<int64_t>(bytes);
  journal.counters.remote_requests += static_cast<int64_t>(requests);
  journal.spend_bytes(bytes, journal.costs.remote_bytes_per_s);
  if (who != Processor::device || !machine.coherent) return;
  Block& block = blocks_[index];
  block.remote_accesses += static_cast<uint32_t>(requests);
  if (block.remote_accesses < kAccessThreshold) return;
  block.remote_accesses = 0;
  const int device = index_of(Processor::device);
  const PageMask remote = block.read[device] - block.resident[device];
  if (!remote.empty()) service(index, who, remote, false, Cause::access_counter);
}

// Pages that a pin mapped from afar fault again (uvm_perf_thrashing_unmap_remote_pinned_pages_all).
void Driver::unmap_expired_pins(uint32_t index) {
  Block& block = blocks_[index];
  const PageMask freed = thrashing_.unpin_expired(*block.thrashing);
  for (int by : {0, 1}) {
    if (block.policy->accessed_by[by]) continue;
    block.read[by] -= freed - block.resident[by];
    block.write[by] -= freed - block.resident[by];
  }
}

}  // namespace um::pages
