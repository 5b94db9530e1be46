// Divides the time of one step of a GPU into kinds. The device's clock shows when ops ran and streams stalled. In the
// rest of the step the device was idle, and the host's turns explain that time. So each kind is measured by itself, and
// time that none explains is in no number.
#pragma once

#include <cstdint>
#include <vector>

#include "cupti/records.h"
#include "engine/op_timeline.h"
#include "engine/times.h"
#include "umadvise.h"

namespace um {

// An interval of the device's time, by CLOCK_MONOTONIC.
struct Stretch {
  int64_t begin_ns, end_ns;
  um_time kind;
};

// Returns the intervals in which faults were served: for evictions, for migration, or for neither, as CUPTI recorded
// them. Throws std::bad_alloc.
std::vector<Stretch> stood_for_faults(const std::vector<cupti::Sample>& samples);

// Returns the copies that a budget or a plan requested, in order. Throws std::bad_alloc.
std::vector<Stretch> copies_asked_for(const std::vector<cupti::Sample>& samples);

struct StepTimes {
  um_spent_time all;
  std::vector<int64_t> compute_ns;  // by op
};

// Divides the time from the host's first turn to `end_ns`. If intervals of `stood` overlap, the earlier ones in the
// list count. An op computes from the time when the host has launched it, but for at least an eighth of its time on the
// device. `copied`: copies for which a device that has been given an op may stall before it. Throws std::bad_alloc.
StepTimes times_of_step(const std::vector<Times::Turn>& host, const std::vector<OpTimeline::Op>& ops,
                        const std::vector<Stretch>& stood, const std::vector<Stretch>& copied, int64_t end_ns);

// Returns how long the ops of each name, module and phase computed in total. The bytes on the device are unknown.
// Throws std::bad_alloc.
std::vector<um_residency> ran_by_op(const std::vector<OpTimeline::Op>& ops, const std::vector<int64_t>& compute_ns);

}  // namespace um
