// What the ops of torch.distributed are given is held until their work has ended: see collectives.cpp.
#pragma once

namespace um::hooks {

// For the life of the process; where nothing is in memory of ours they only pass through.
void hold_for_collectives();

// Work of which nobody can be told that it has ended is asked here whether it has. A few instructions where there is
// none.
void ask_for_ended_work();

// Waits for work that is going on, so that what it holds may leave. False: there is none that can be waited for.
bool wait_for_work();

}  // namespace um::hooks
