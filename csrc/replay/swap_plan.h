// What a plan says, and what its actions do to a step that swaps.
#pragma once

#include <cstdint>
#include <vector>

#include "replay/plan_action.h"
#include "replay/swap_recompute.h"
#include "replay/swap_storages.h"
#include "umadvise.h"

namespace um::simulator {

class SwapPlan {
 public:
  // `plan`: nullptr where there is none. All are borrowed. Throws Error when it is not a plan for this trace.
  SwapPlan(const um_plan* plan, const IndexedTrace& trace, SwapStorages& storages, um_swap_result& result);

  // Where a storage of before the first op is when the plan's steady state begins: a plan that first swaps it in has it
  // on the host then.
  bool starts_on_host(int32_t storage) const { return starts_on_host_[static_cast<size_t>(storage)] != 0; }
  void begin_iteration() { next_ = 0; }
  // The actions before or after an op. Throws Error when one of them cannot be.
  void run(int32_t op, bool after);

 private:
  void check(const IndexedTrace& trace) const;
  void find_first_actions();
  void act(const PlanAction& action);
  void swap_in(int32_t storage);
  void swap_out(int32_t storage);
  void wait(int32_t storage);
  void drop(int32_t storage);
  bool still_on_device(int32_t storage);

  const um_plan plan_;
  SwapStorages& storages_;
  um_swap_result& result_;
  SwapRecompute recompute_;
  std::vector<uint8_t> starts_on_host_;
  uint64_t next_ = 0;
};

}  // namespace um::simulator
