#include "remedies.h"

#include <string>

#include "collectives.h"
#include "errors.h"
#include "interposer.h"

namespace um::hooks {
namespace {

std::atomic<um_hooks_rescuer> rescuer{nullptr};

bool begin_step(const Request&) {
  const um_hooks_edge tell = tell_of_edge.load();
  const auto edge_status = static_cast<um_status>(tell == nullptr ? UM_OK : tell());
  if (edge_status == UM_OUT_OF_DEVICE_MEMORY) throw_as_torch(edge_status);
  TORCH_CHECK(edge_status == UM_OK,
              "the edge between two steps, which were found by their repetition, failed: see the log");
  return true;
}

// Work that has ended since the first attempt may have held what that one needed.
bool await_collectives(const Request& request) { return wait_for_work() || ended_work != request.ended_before; }

bool move_to_unified_memory(const Request&) {
  const um_hooks_rescuer call = rescuer.load();
  return call != nullptr && call() != 0;
}

// A session that moves to unified memory postpones no refusal.
bool put_off_refusals(const Request& request) {
  return rescuer.load() == nullptr && um_refusals_put_off(request.device) == UM_OK;
}

struct Remedy {
  um_status answers;            // the refusal against which it may help
  uint32_t serves;              // bits of Caller
  bool (*run)(const Request&);  // false: it cannot help now
  uint32_t ops_flag = 0;        // the flag of the ops that it runs (um_op_flag); 0: it runs none
  bool is_last_resort = false;  // a refusal after it has the message of the one before
};

constexpr Remedy kRemedies[] = {
    {UM_STEP_BEGINS, kOpBegin, &begin_step, UM_OP_AT_EDGE},
    {UM_OUT_OF_DEVICE_MEMORY, kOpBegin | kHostAllocation | kCollectiveOperand, &await_collectives},
    {UM_OUT_OF_DEVICE_MEMORY, kOpBegin | kHostAllocation | kCudaAllocation, &move_to_unified_memory, 0, true},
    {UM_OUT_OF_DEVICE_MEMORY, kOpBegin | kHostAllocation, &put_off_refusals, 0, true},
};

bool helped(const Remedy& remedy, const Request& request) {
  if (remedy.ops_flag == 0) return remedy.run(request);
  const OpsOfRemedy seen(remedy.ops_flag);
  return remedy.run(request);
}

}  // namespace

um_status run_remedies(um_status status, const Request& request, c10::function_ref<um_status()> attempt) {
  std::string words = um_last_error();
  for (const Remedy& remedy : kRemedies) {
    if (remedy.answers != status || (remedy.serves & request.caller) == 0 || !helped(remedy, request)) continue;
    const um_status again = attempt();
    if (again == UM_OK) return UM_OK;
    if (remedy.is_last_resort) continue;
    status = again;
    words = um_last_error();
  }
  last_error = words;
  return status;
}

}  // namespace um::hooks

void um_hooks_edge_set(um_hooks_edge edge) { um::hooks::tell_of_edge = edge; }

void um_hooks_rescuer_set(um_hooks_rescuer rescuer) { um::hooks::rescuer = rescuer; }
