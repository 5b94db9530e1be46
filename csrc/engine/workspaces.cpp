// What libraries keep for themselves: kernels use it that no op announces. cuBLAS asks for its workspace inside the
// first product of a thread, through the same function as tensors are made, so nothing tells it from one at that time.
// It is told when the op ends: what outlives the op that made it and is no output.
#include <exception>

#include "engine/device.h"

namespace um {
namespace {

class Workspaces final : public Participant {
 public:
  explicit Workspaces(um_device& device) : Participant(device, kWorkspaceTurns) {}

  void end_op(RunningOp& op) noexcept override {
    try {
      for (const um_access& access : op.working_set.accesses()) {
        Block* block = device_.own_block(access.address);
        if (block != nullptr && !notes(*block).seen && !notes(*block).workspace)
          device_.budget.set_workspace(block, true);
      }
    } catch (const std::exception&) {
      return;  // then it leaves and comes back with the kernels that use it
    }
  }
};

}  // namespace

std::unique_ptr<Participant> workspaces(um_device& device) { return std::make_unique<Workspaces>(device); }

}  // namespace um
