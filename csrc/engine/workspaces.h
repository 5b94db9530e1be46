// Notes memory that libraries keep for themselves, which kernels use without an op that announces it. cuBLAS allocates
// its workspace within the first product of a thread, with the same function as tensors, so it cannot be recognized at
// that time. It is recognized when the op ends: it outlives the op that allocated it, and is no output.
//
// A device whose memory the CPU may use does not need it.
#pragma once

#include <exception>

#include "engine/budget_keeper.h"
#include "engine/participant.h"

namespace um {

class Workspaces final : public Participant {
 public:
  Workspaces(DeviceBase& base, BudgetKeeper& budget) : Participant(base, kWorkspaceTurns), budget_(budget) {}

  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock) {
    try {
      for (const um_access& access : op.working_set.accesses()) {
        Block* block = base_.own_block(access.address);
        if (block != nullptr && !notes(*block).seen && !notes(*block).workspace) budget_.set_workspace(block, true);
      }
    } catch (const std::exception&) {
      return;  // without the mark, it is paged out and in with the kernels that use it
    }
  }

 private:
  BudgetKeeper& budget_;
};

}  // namespace um
