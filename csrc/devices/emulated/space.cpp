#include "devices/emulated/space.h"

namespace um::emulated {

Service Space::fault(uint64_t address, bool write, bool announced) {
  delays.wait();
  const uint32_t block = place_of(address).block;
  Moment over(link);
  const SpinGuard guard(blocks.lock);
  if (blocks[block].kind == Kind::reserved) return mappings.fault(block, address, write);
  if (announces_faults.load(std::memory_order_relaxed) && !announced) return Service::announces;
  const Service service = managed.fault(block, address, write);
  over.ns = blocks[block].ready_ns;
  return service;
}

driver::DeviceTotals Space::totals() {
  const SpinGuard guard(blocks.lock);
  driver::DeviceTotals totals{};
  managed.tell(totals);
  totals.silent_writes = mappings.silent_writes();
  totals.host_bytes = blocks.host_tier.taken() * kBlockBytes;
  blocks.resident.tell(totals);
  return totals;
}

}  // namespace um::emulated
