// Replays a trace on a simulated GPU, or on a simulated device on which ops run in the host's thread: the engine swaps
// in chunks as in a session, and follows a plan from the second iteration on.
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

// Pointers to allocations that may move: an owner is a place that holds one.
class Pointers final : public Owners {
 public:
  void* remember(void* place, uint64_t address) noexcept override {
    return *static_cast<void**>(place) == reinterpret_cast<void*>(address) ? place : nullptr;
  }
  bool repoint(void* place, uint64_t, uint64_t to) noexcept override {
    *static_cast<void**>(place) = reinterpret_cast<void*>(to);
    return true;
  }
  void forget(void*) noexcept override {}
};

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
  void run_iteration();
  void place_small();
  void make_before();
  void run_op(int32_t op);
  void begin(int32_t op);
  void launch(int64_t duration_ns, bool host_waits);
  int64_t jitter(int64_t duration_ns);
  void events(int32_t op, bool inside);
  void event(uint64_t row);
  void copy(uint64_t row);
  void allocate(int32_t storage, um_device::Use use);
  void free(int32_t storage) noexcept;
  void hand_over();
  void set_program();
  void close_step(um_simulation& out);
  bool is_steady(const um_simulation& so_far);

  void* place(int32_t storage) const { return static_cast<void*>(places_[static_cast<size_t>(storage)].get()); }
  void* pointer(int32_t storage) const {
    const auto& place = places_[static_cast<size_t>(storage)];
    return place == nullptr ? nullptr : *place;
  }

  const um_trace trace_;
  const IndexedTrace index_;
  const um_plan* const plan_;
  const um_gpu_options options_;
  Clock clock_;
  Backend backend_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<um_device> device_;

  Pointers owners_;
  std::vector<std::unique_ptr<void*>> places_;  // by storage; nullptr: not there now
  std::vector<um_access> accesses_;
  std::vector<um_shown> outputs_;
  std::deque<int64_t> ends_ns_;  // of the ops launched last
  uint64_t jitters_ = 0;         // so far
  std::vector<char> host_;       // what the script copies
  uint32_t alike_ = 0;           // iterations at the end that are like the one before
  um_swap_counters swaps_{};     // when the present step began
  int64_t step_start_ns_ = 0;
};

}  // namespace um::simulator
