// The address space of one emulated device, part by part: managed blocks that move between two tiers as um::Model says,
// plain blocks that stay, and reserved ones under which physical memory is mapped by hand. Each part borrows those
// above it; everything that touches pages is in one of them.
#pragma once

#include <atomic>

#include "devices/emulated/copy_engine.h"
#include "devices/emulated/managed_memory.h"
#include "devices/emulated/mappings.h"
#include "devices/emulated/physical_memory.h"
#include "devices/emulated/ranges.h"

namespace um::emulated {

struct Space {
  // Throws std::bad_alloc. `device` is the index of its span (layout.h).
  Space(int device, const um_emulated_options& options, Mapper::Method method)
      : delays(options.delay_max_us, options.delay_seed),
        blocks(device, options, method, events),
        managed(blocks, migrator, link, delays, options.counting == UM_COUNTING_ORDERED) {}

  // A fault of the device at `address`, from the signal handler; `announced`: the owner knows of it already.
  // Async-signal-safe.
  Service fault(uint64_t address, bool write, bool announced);
  driver::DeviceTotals totals();

  std::atomic<bool> announces_faults{false};  // DeviceHooks::announce_faults
  Delays delays;
  Link link;  // everything takes the time it would take there; under the lock of `blocks`
  EventRing events{link};
  BlockTable blocks;
  Migrator migrator{blocks, link, delays};
  ManagedMemory managed;
  CopyEngine copies{blocks, migrator, link};
  Ranges ranges{blocks, migrator, link};
  // CUDA's virtual memory management.
  PhysicalMemory physical{blocks, migrator, link, ranges};
  Mappings mappings{blocks, ranges, physical, copies, delays};
};

}  // namespace um::emulated
