// Remedies for requests that the core refuses: a refused request is tried again after each remedy of its table.
//
// The core runs no kernel and no Python under its lock. So a call that cannot succeed yet fails with a status. The
// caller applies a remedy, outside of the lock, and calls again.
//
// Example: an op begins while a collective pins 8 of the 16 MiB that it needs. um_op_begin returns
// UM_OUT_OF_DEVICE_MEMORY, the table's remedy waits for the collective, and the second begin succeeds.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>

#include "collectives.h"
#include "hooks.h"

namespace um::hooks {

// The callers that the core can refuse. A remedy names those that it serves, as bits.
enum Caller : uint32_t { kOpBegin = 1, kHostAllocation = 2, kCudaAllocation = 4, kCollectiveOperand = 8 };
struct Request {
  Caller caller;
  um_device* device;
  uint64_t ended_before = ended_work.load();  // work that ended before the first attempt
};

// The function of um_hooks_edge_set; nullptr while steps are not searched for.
inline std::atomic<um_hooks_edge> tell_of_edge{nullptr};

// Runs the remedies for a request that was refused with `status`, each once at most, in the order of their table, and
// `attempt` after each that could help. Returns UM_OK, or the status of the refusal, whose message is then in
// `last_error`. Throws as torch does if a remedy itself fails.
um_status run_remedies(um_status status, const Request& request, c10::function_ref<um_status()> attempt);

// Makes the request, and repeats it after remedies while it is refused.
template <class Attempt>
um_status request_with_remedies(const Request& request, const Attempt& attempt) {
  const um_status status = attempt();
  return status == UM_OK ? UM_OK : run_remedies(status, request, attempt);
}

}  // namespace um::hooks
