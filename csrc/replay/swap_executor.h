// One training step, executed on paper: a compute queue, the copy engines, a host thread that runs ahead, and for every
// storage where it is. Whole storages move, as a plan says or because an op needs them.
#pragma once

#include <vector>

#include "engine/indexed_trace.h"
#include "replay/swap_plan.h"
#include "replay/swap_storages.h"
#include "umadvise.h"

namespace um::simulator {

class SwapExecutor {
 public:
  // Throws Error when trace or plan is not one.
  SwapExecutor(const um_trace& trace, const um_plan* plan, const um_link& link, const um_swap_options& options);

  // Throws Error: UM_OUT_OF_DEVICE_MEMORY when something finds no room, UM_INVALID_ARGUMENT when the plan is wrong.
  void run();
  const um_swap_result& result() const { return result_; }
  std::vector<um_span> take_spans() { return storages_.clock.take_spans(); }

 private:
  void begin_iteration();
  void step(int32_t op);
  void use_all(int32_t op);
  void events_inside(int32_t op);
  void events_after(int32_t op);
  void event(uint64_t row);
  void settle_writes(int32_t op);

  const IndexedTrace trace_;
  const um_swap_options options_;
  um_swap_result result_{};
  SwapStorages storages_;
  SwapPlan plan_;
  std::vector<int32_t> frees_after_op_;  // inside the present op, not given to anything before its end
};

}  // namespace um::simulator
