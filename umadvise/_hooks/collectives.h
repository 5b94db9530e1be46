// Holds the tensors of torch.distributed's ops on the device until the ops' work has ended (collectives.cpp).
#pragma once

#include <atomic>
#include <cstdint>

namespace um::hooks {

// Registers this for the life of the process. Ops without our memory pass through.
void hold_for_collectives();

// Polls work that cannot notify when it has ended. It takes a few instructions if there is none.
void ask_for_ended_work();

// Counts work that has ended and holds nothing any more, of the kind that can be waited for.
inline std::atomic<uint64_t> ended_work{0};

// Waits for running work, so that its tensors can be evicted. Returns false if there is none to wait for.
bool wait_for_work();

}  // namespace um::hooks
