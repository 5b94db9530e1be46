// Adds up the counters, times and swaps of steps. The edge between two steps costs little if a caller reads the sums
// alone.
#pragma once

#include "umadvise.h"

namespace um {

// Adds one step, from its readings at both edges, to `sums`. The second half of sums->rows has the step's rows of
// um_residency; sums->row_count says how many these are. Returns false, and adds nothing, if rows are there from steps
// before and have other subjects, or if the rows do not fit in sums->row_capacity.
bool add_step(const um_edge& begun, const um_edge& ended, um_step_sums* sums);

}  // namespace um
