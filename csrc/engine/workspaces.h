// Notes memory that libraries keep for themselves, which kernels use without an op that announces it. cuBLAS allocates
// its workspace within the first product of a thread, with the same function as tensors, so it cannot be recognized at
// that time. It is recognized when the op ends: it outlives the op that allocated it, and is no output.
//
// A device whose memory the CPU may use does not need it.
#pragma once

#include "base/thread_safety.h"
#include "engine/budget_keeper.h"
#include "engine/participant.h"

namespace um {

class Workspaces final : public Participant {
 public:
  Workspaces(DeviceBase& base, BudgetKeeper& budget) : Participant(base, kWorkspaceTurns), budget_(budget) {}

  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock);

 private:
  BudgetKeeper& budget_;
};

}  // namespace um
