// Which chunks lie under each stay of a step that repeats, chosen ahead of time (docs/decisions/storages-that-move.md).
// Stays that meet in the order of the host's calls share no chunk; the step repeats, so its time is a circle.
#pragma once

#include <cstdint>
#include <vector>

namespace um {

// Since a step began: takings and givings of memory, and what the device has computed by then, in whatever unit.
struct Moment {
  int64_t tick = 0;
  double clock = 0;
};

// A time for which a storage holds chunks: less than a circle, and it may end in the one after.
struct Stay {
  uint64_t count = 0;
  Moment begin, end;
  std::vector<uint32_t> chunks;  // ascending
};

// Of chunks 0 to `count`, but for `others`, in a circle of steps. Stays that span its edge have theirs. Every other
// one, in the order in which they begin, takes of the chunks that are free for all of it those for which the device
// waits least, now and when the circle begins anew, and of equal ones those that it is done with first. Where there are
// too few, chunks that others have in part of that time change places with free ones, so that the device waits as
// little longer as may be. What a stay lacks then nobody could be found to give.
void lay_out(std::vector<Stay>* stays, Moment length, uint32_t count, const std::vector<uint32_t>& others);

}  // namespace um
