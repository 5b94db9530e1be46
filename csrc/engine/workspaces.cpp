// What libraries keep for themselves: kernels use it that no op announces. cuBLAS asks for its workspace inside the
// first product of a thread, through the same function as tensors are made, so nothing tells it from one at that time.
// It is told when the op ends: what outlives the op that made it and is no output.
#include "engine/device.h"

using um::Block;

void um_device::keep_workspaces(const um::RunningOp& op) noexcept {
  try {
    for (const um_access& access : op.working_set.accesses()) {
      Block* block = own_block(access.address);
      if (block != nullptr && !block->record.seen && !block->record.workspace) set_workspace(block, true);
    }
  } catch (const std::exception&) {
    return;  // then it leaves and comes back with the kernels that use it
  }
}

// A budget does not send it away.
void um_device::set_workspace(Block* block, bool is_one) {
  block->record.workspace = is_one;
  if (budget_ == nullptr) return;
  if (is_one) {
    budget_->pin(block->address, block->record.bytes);
  } else {
    budget_->unpin(block->address, block->record.bytes);
  }
}

// Of a closed device, on which only workspaces are left: libraries keep them for the life of the process.
void um_device::drop_idle_budget() noexcept {
  if (budget_ == nullptr) return;
  bool idle = true;
  allocations_->each_block([&](const Block& block) { idle = idle && block.record.workspace; });
  if (idle) budget_.reset();
}
