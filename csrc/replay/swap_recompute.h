// Ops that run again to make a storage whose contents were dropped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/indexed_trace.h"
#include "replay/plan_action.h"
#include "replay/swap_storages.h"
#include "umadvise.h"

namespace um::simulator {

class SwapRecompute {
 public:
  // All are borrowed.
  SwapRecompute(const IndexedTrace& trace, SwapStorages& storages, um_swap_result& result)
      : trace_(trace),
        storages_(storages),
        result_(result),
        last_touch_(static_cast<size_t>(trace.storage_count()), -1) {}

  // From the plan's first op to the last one that wrote the storage. What they need besides and is gone by now is made
  // again for as long as they need it; only the storage itself stays. Throws Error when they cannot run again.
  void run(const PlanAction& action);

 private:
  void find_last_touches(const PlanAction& action, int32_t last_op);
  void rerun(const PlanAction& action, int32_t last_op);
  void use(const PlanAction& action, uint64_t access, int32_t last_op);
  [[noreturn]] void cannot_run(const PlanAction& action, int32_t storage, const std::string& why) const;
  void borrow(int32_t storage);
  bool is_borrowed(int32_t storage) const;
  void give_back_borrowed();

  const IndexedTrace& trace_;
  SwapStorages& storages_;
  um_swap_result& result_;
  std::vector<int32_t> borrowed_;    // memory of storages that are not there, for ops that run again
  std::vector<int32_t> last_touch_;  // the last of these ops that touches a storage
  uint64_t begin_ = 0;               // the present pin when the first of them began
};

}  // namespace um::simulator
