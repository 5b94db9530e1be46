// The C ABI of simulations in which the engine runs.
#include "replay/unified_replay.h"

#include <algorithm>

#include "capi/guard.h"
#include "memory/process.h"
#include "replay/gpu_replay.h"
#include "umadvise.h"

namespace {

template <class Row>
uint64_t give(const std::vector<Row>& rows, Row* out, uint64_t capacity) {
  if (out != nullptr) std::copy_n(rows.begin(), std::min<uint64_t>(rows.size(), capacity), out);
  return rows.size();
}

void refuse_fork() {
  if (!um::process::forked()) return;
  throw um::Error(UM_BAD_STATE,
                  "this process was forked from one that used a device: simulate in a process of its own (spawn)");
}

template <typename Simulator, typename Options>
um_status simulate(const um_trace* trace, const um_plan* plan, const Options* options, um_simulation** out) {
  return um::capi::caught([&] {
    um::capi::given(out, "the place for the simulation");
    um::capi::given(trace, "the trace");
    um::capi::given(options, "the options");
    refuse_fork();
    *out = new um_simulation(Simulator(*trace, plan, *options).run());
  });
}

}  // namespace

um_status um_simulate_unified(const um_trace* trace, const um_plan* plan, const um_unified_options* options,
                              um_simulation** out) {
  return simulate<um::simulator::Replay>(trace, plan, options, out);
}

um_status um_simulate_gpu(const um_trace* trace, const um_plan* plan, const um_gpu_options* options,
                          um_simulation** out) {
  return simulate<um::simulator::GpuReplay>(trace, plan, options, out);
}

uint64_t um_simulation_gpu_steps(const um_simulation* simulation, um_gpu_step* out, uint64_t capacity) {
  return simulation == nullptr ? 0 : give(simulation->gpu_steps, out, capacity);
}

uint64_t um_simulation_calls(const um_simulation* simulation, um_call_count* out, uint64_t capacity) {
  return simulation == nullptr ? 0 : give(simulation->calls, out, capacity);
}

uint64_t um_simulation_steps(const um_simulation* simulation, um_simulated_step* out, uint64_t capacity) {
  return simulation == nullptr ? 0 : give(simulation->steps, out, capacity);
}

uint64_t um_simulation_spans(const um_simulation* simulation, um_span* out, uint64_t capacity) {
  return simulation == nullptr ? 0 : give(simulation->spans, out, capacity);
}

uint64_t um_simulation_addresses(const um_simulation* simulation, uint64_t* out, uint64_t capacity) {
  return simulation == nullptr ? 0 : give(simulation->addresses, out, capacity);
}

void um_simulation_destroy(um_simulation* simulation) { delete simulation; }
