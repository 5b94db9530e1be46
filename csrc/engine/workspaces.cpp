// Notes memory that libraries keep for themselves, which kernels use without an op that announces it. cuBLAS allocates
// its workspace within the first product of a thread, with the same function as tensors, so it cannot be recognized at
// that time. It is recognized when the op ends: it outlives the op that allocated it, and is no output.
#include <exception>

#include "engine/device.h"

namespace um {
namespace {

class Workspaces final : public Participant {
 public:
  explicit Workspaces(um_device& device) : Participant(device, kWorkspaceTurns) {}

  void end_op(RunningOp& op) noexcept override REQUIRES(device_lock) {
    try {
      for (const um_access& access : op.working_set.accesses()) {
        Block* block = device_.own_block(access.address);
        if (block != nullptr && !notes(*block).seen && !notes(*block).workspace)
          device_.budget.set_workspace(block, true);
      }
    } catch (const std::exception&) {
      return;  // without the mark, it is paged out and in with the kernels that use it
    }
  }
};

}  // namespace

std::unique_ptr<Participant> workspaces(um_device& device) { return std::make_unique<Workspaces>(device); }

}  // namespace um
