// A simulated device that swaps. As a GPU's owner meets it: no hooks, so that the engine cannot tell it from CUDA, and
// calls that take host time by a table; the engine's own code takes none. Or as the emulated device: with hooks, and
// with ops that run in the host's thread.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "devices/simulated/mappings.h"
#include "devices/simulated/queues.h"
#include "devices/simulated/space.h"
#include "driver/driver.h"

namespace um::simulator {

// Page-locked memory of the host: addresses of this machine.
class HostRanges {
 public:
  HostRanges() = default;
  ~HostRanges();
  HostRanges(const HostRanges&) = delete;
  HostRanges& operator=(const HostRanges&) = delete;

  // nullptr: there are no more.
  void* take(uint64_t bytes);
  bool give(void* address);

 private:
  std::unordered_map<void*, uint64_t> ranges_;
};

// What a call takes of the host, and how often that happened; by the function's place in the driver's table.
struct CallCost {
  int64_t ns, ns_per_mib;
};
using CallCosts = std::array<CallCost, driver::kFunctionCount>;
struct CallCount {
  int64_t calls, ns, waits, wait_ns;
};
using CallCounts = std::array<CallCount, driver::kFunctionCount>;

class Gpu {
 public:
  // Both are borrowed.
  Gpu(Space& space, Clock& virtual_clock, const CallCosts& costs, bool synchronous = false)
      : clock(virtual_clock), queues(virtual_clock, synchronous), mappings(space.ranges), costs_(costs) {}

  // The host is in a call from now on, and has been as long as the table says.
  void call(driver::Function function);
  // More of the same call.
  void charge_bytes(uint64_t bytes);
  // It is about so many mappings, and takes each as long as one: so it was on an H100 (profiles/measured).
  void charge_mappings(uint64_t count);
  // What the host waited for since it began is counted with it.
  void end_call();
  CallCounts take_counts() { return std::exchange(counts_, {}); }

  Clock& clock;
  Queues queues;
  Mappings mappings;
  HostRanges host;

 private:
  const CallCosts costs_;
  CallCounts counts_{};
  size_t current_ = 0;
};

}  // namespace um::simulator

namespace um::driver {

// Closes when its primary context is released.
const Driver* simulated_gpu();
// Likewise, with the hooks of a simulated device, for a space whose `gpu` is synchronous.
const Driver* simulated_synchronous();

}  // namespace um::driver
