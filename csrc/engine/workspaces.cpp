#include "engine/workspaces.h"

#include <exception>

#include "engine/device_base.h"

namespace um {

void Workspaces::end_op(RunningOp& op) noexcept {
  try {
    for (const um_access& access : op.working_set.accesses()) {
      Block* block = base_.own_block(access.address);
      if (block != nullptr && !notes(*block).seen && !notes(*block).workspace) budget_.set_workspace(block, true);
    }
  } catch (const std::exception&) {
    return;  // without the mark, it is paged out and in with the kernels that use it
  }
}

}  // namespace um
