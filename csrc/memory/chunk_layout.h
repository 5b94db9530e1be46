// Assigns chunks ahead of time to each stay of a step that repeats (docs/decisions/storages-that-move.md).
//
// A stay is the interval from taking memory to giving it back. Two stays that overlap in the order of the host's calls
// never share a chunk. The step repeats, so its time is a circle: a stay may begin before the step's end and end after
// the beginning of the next one.
//
// Example: a step of 10 ticks has the stays A [1, 4), B [2, 6) and C [5, 9) of one chunk each. A and B overlap and get
// chunks 1 and 0. C begins after A has ended, so it gets chunk 1 again.
#pragma once

#include <cstdint>
#include <vector>

namespace um {

// A point in a step. `tick` counts the takings and givings since the step began. `clock` is the device's computing time
// until then, in any unit.
struct Moment {
  int64_t tick = 0;
  double clock = 0;
};

// The interval in which a storage holds `count` chunks. It is shorter than the circle, and may end in the next one.
struct Stay {
  uint64_t count = 0;
  Moment begin, end;
  std::vector<uint32_t> chunks;  // ascending
};

// Assigns chunks 0 to `count` - 1, except `others`, to the stays of a circle of `length`.
//
// A stay that already has chunks, because it spans the circle's edge, keeps them. The other stays are served in the
// order in which they begin. Each takes chunks that are free during all of it. It prefers chunks for which the device
// waits least, both now and when the circle begins again; of equal ones, those whose last stay ended first on the
// device. If too few chunks are free during all of a stay, two chunks swap some of their later stays to make one free,
// where that makes the device wait least. A stay that still lacks chunks gets fewer than `count`.
void lay_out(std::vector<Stay>* stays, Moment length, uint32_t count, const std::vector<uint32_t>& others);

}  // namespace um
