// Replays a trace on a simulated device: every allocation, op, copy and free goes through the engine, as in a real run.
#pragma once

#include <memory>
#include <vector>

#include "devices/simulated/clock.h"
#include "devices/simulated/fault_shape.h"
#include "devices/simulated/space.h"
#include "engine/device.h"
#include "engine/indexed_trace.h"
#include "planning/caching_heap.h"
#include "replay/simulation.h"

namespace um::simulator {

class Replay {
 public:
  // Throws um::Error when trace, plan or options contradict themselves. All are borrowed.
  Replay(const um_trace& trace, const um_plan* plan, const um_unified_options& options);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  um_simulation run();

 private:
  void run_iteration();
  void run_op(int32_t op);
  void begin(int32_t op);
  void make_cached(int32_t op);
  void events(int32_t op, bool inside);
  void event(uint64_t row);
  void allocate(int32_t storage);
  void allocate_cached(int32_t storage);
  void free(int32_t storage) noexcept;
  void service(uint64_t row);
  void note_uses(int32_t op);
  void actions(int32_t op, bool after);
  void act(uint64_t row);
  void advise(uint64_t address, uint64_t bytes, um_advice wanted);
  void hand_over();
  void close_step(um_simulation& out);

  um_concurrency concurrency(int32_t op) const;
  // Of prefetches that are not the plan's: the guard's, and those of new memory.
  Lane lane() const { return options_.beside != 0 ? Lane::beside : Lane::ops; }
  bool lives(int32_t storage) const { return addresses_[static_cast<size_t>(storage)] != 0; }
  uint64_t address(int32_t storage) const { return addresses_[static_cast<size_t>(storage)]; }
  void* pointer(int32_t storage) const { return reinterpret_cast<void*>(address(storage)); }

  const um_trace trace_;
  const IndexedTrace index_;
  const um_plan* const plan_;
  const um_unified_options options_;
  Clock clock_;
  FaultShapes shapes_;
  std::unique_ptr<um_device> device_;
  std::unique_ptr<CachingHeap> caches_[3 * UM_ADVICE_COUNT];  // by role and advice; made when they are needed
  Space* space_ = nullptr;

  std::vector<uint64_t> addresses_;  // by storage; 0: none now
  std::vector<uint64_t> places_;     // by storage: its address of this iteration, also after its end; 0: none
  struct Cached {
    CachingHeap* heap;
    int64_t handle;
  };
  std::vector<Cached> cached_;       // by storage
  std::vector<uint8_t> continued_;   // by storage: it was there when this iteration began
  std::vector<uint64_t> plan_rows_;  // by place
  size_t next_row_ = 0;
  std::vector<um_access> accesses_;
  std::vector<um_shown> outputs_;
  um_counters counters_{};  // when the present step began
  int64_t step_start_ns_ = 0;
};

}  // namespace um::simulator
