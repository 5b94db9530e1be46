#include "devices/simulated/space.h"

namespace um::simulator {
namespace {

uint32_t chunks(const um_emulated_options& options) {
  return static_cast<uint32_t>(options.capacity_bytes / kBlockBytes);
}

uint64_t host_blocks(const um_emulated_options& options) {
  return options.host_bytes == 0 ? kSpanBlocks : options.host_bytes / kBlockBytes;
}

}  // namespace

Space::Space(int device, const um_emulated_options& options)
    : blocks(device),
      migrator(blocks, chunks(options)),
      ranges(blocks, migrator, chunks(options), host_blocks(options)),
      managed(blocks, migrator, options.counting == UM_COUNTING_ORDERED) {}

driver::DeviceTotals Space::totals() const {
  driver::DeviceTotals totals{};
  totals.model = migrator.model.counters();
  totals.unordered_faults = managed.unordered_faults();
  totals.stood.migration_ns = migrator.clock != nullptr ? migrator.clock->fault_service_ns() : 0;
  blocks.tell(totals);
  return totals;
}

}  // namespace um::simulator
