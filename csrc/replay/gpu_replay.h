// Replays a trace on a simulated GPU: the engine swaps in chunks as in a session, and follows a plan from the second
// iteration on.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "devices/simulated/clock.h"
#include "devices/simulated/gpu.h"
#include "engine/device.h"
#include "engine/indexed_trace.h"
#include "replay/simulation.h"
#include "umadvise.h"

namespace um::simulator {

class GpuReplay {
 public:
  // Throws um::Error when trace or options contradict themselves. All are borrowed.
  GpuReplay(const um_trace& trace, const um_plan* plan, const um_gpu_options& options);
  ~GpuReplay();
  GpuReplay(const GpuReplay&) = delete;
  GpuReplay& operator=(const GpuReplay&) = delete;

  // Throws um::Error where an op finds no room.
  um_simulation run();

 private:
  void make_initial();
  void run_iteration();
  void run_op(int32_t op);
  void begin(int32_t op);
  void launch(int64_t duration_ns, bool host_waits);
  void events(int32_t op, bool inside);
  void allocate(int32_t storage);
  void free(int32_t storage) noexcept;
  void hand_over();
  void set_program();
  void close_step(um_simulation& out);

  void* pointer(int32_t storage) const { return pointers_[static_cast<size_t>(storage)]; }

  const um_trace trace_;
  const IndexedTrace index_;
  const um_plan* const plan_;
  const um_gpu_options options_;
  Clock clock_;
  Backend backend_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<um_device> device_;

  std::vector<void*> pointers_;  // by storage; nullptr: not there now
  std::vector<um_access> accesses_;
  std::vector<const void*> outputs_;
  std::deque<int64_t> ends_ns_;  // of the ops launched last
  um_swap_counters swaps_{};     // when the present step began
  int64_t step_start_ns_ = 0;
};

}  // namespace um::simulator
