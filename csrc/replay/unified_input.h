// What a simulation of a device is given, checked: nothing in it can lead out of bounds or out of 64 bits later.
// Beyond what IndexedTrace checks of a trace. All throw um::Error with the rule that is broken.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "umadvise.h"

namespace um::simulator {

void check(const um_unified_options& options, uint64_t storages);
void check(const um_link& link);
void check(const um_trace& trace, uint32_t iterations);
// The rows of a plan of advice, prefetches and discards, in the order in which they happen.
std::vector<uint64_t> checked_in_order(const um_plan& plan, const um_trace& trace);

}  // namespace um::simulator
