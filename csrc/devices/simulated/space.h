// The address space of a simulated device: addresses behind which there are no bytes, blocks that move by the rules of
// um::Model, and a clock that is told what moved. Not thread-safe: one simulation has one thread.
#pragma once

#include "devices/simulated/managed_memory.h"
#include "devices/simulated/ranges.h"

namespace um::simulator {

class Gpu;

struct Space {
  // Throws std::bad_alloc. `device` is the index of its span.
  Space(int device, const um_emulated_options& options);

  driver::DeviceTotals totals() const;

  BlockTable blocks;
  Migrator migrator;
  Ranges ranges;
  ManagedMemory managed;
  Gpu* gpu = nullptr;  // nullptr: calls take no time but the clock's own
};

}  // namespace um::simulator
