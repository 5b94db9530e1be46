// What the time of one step of a GPU went into. The device's clock tells when ops ran and when streams stood still;
// what is left of the step it had nothing to do, and that time is for what the host was at. So each kind is seen by
// itself, and what none of them explains is in no number.
#pragma once

#include <cstdint>
#include <vector>

#include "cupti/records.h"
#include "engine/op_timeline.h"
#include "engine/times.h"
#include "umadvise.h"

namespace um {

// Of the device, by CLOCK_MONOTONIC.
struct Stretch {
  int64_t begin_ns, end_ns;
  um_time kind;
};

// While a fault is serviced, what leaves for it is copied, or what comes for it, or nothing: what CUPTI recorded of a
// step. Throws std::bad_alloc.
std::vector<Stretch> stood_for_faults(const std::vector<cupti::Sample>& samples);

// What was copied because somebody asked for it: pages that a budget or a plan has leave or come. In order. Throws
// std::bad_alloc.
std::vector<Stretch> copies_asked_for(const std::vector<cupti::Sample>& samples);

struct StepTimes {
  um_spent_time all;
  std::vector<int64_t> compute_ns;  // of each op
};

// From the first turn of the host on. Of `stood` the earlier ones come first where they overlap. An op computes from
// when the host has given it to the device, but for at least an eighth of the time that it has there. `copied`: what a
// device that has been given an op may stand still for before it. Throws std::bad_alloc.
StepTimes times_of_step(const std::vector<Times::Turn>& host, const std::vector<OpTimeline::Op>& ops,
                        const std::vector<Stretch>& stood, const std::vector<Stretch>& copied, int64_t end_ns);

// For how long each op of one name, module and phase computed in all; what was on the device meanwhile is not known.
// Throws std::bad_alloc.
std::vector<um_residency> ran_by_op(const std::vector<OpTimeline::Op>& ops, const std::vector<int64_t>& compute_ns);

}  // namespace um
