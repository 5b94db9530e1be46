#include "engine/step_undo.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/host_memory.h"
#include "memory/names.h"

namespace um {

uint32_t StepUndo::step() const { return device_.guard.step(); }

void StepUndo::watch(Block* block) {
  if (!device_.backend.hooks->in_host)
    throw Error(UM_UNSUPPORTED, "contents are kept where kernels run in the host, and not on a GPU");
  notes(*block).watched = true;
  device_.guard.join(*this);
}

void StepUndo::begin_refused() {
  refused_at_ = device_.allocations->last_serial();
  changed_ = changes();
  device_.guard.join(*this);
}

// After Swapping's turn: an operand that moves can be read where it lies.
void StepUndo::begin_op(RunningOp&) {
  if (step() == 0) return;
  for (const Operand& operand : device_.guard.operands()) {
    Block& block = *operand.block;
    if (operand.access->write == 0 || managed(block)) continue;
    const bool outlives = refused_at_ != 0 && block.record.serial <= refused_at_;
    if (!(notes(block).watched || outlives) || is_kept(block)) continue;
    const auto* const bytes = reinterpret_cast<const char*>(block.address);
    kept_.push_back({&block, std::vector<char>(bytes, bytes + block.record.bytes)});
  }
}

bool StepUndo::is_kept(const Block& block) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& each) { return each.block == &block; });
}

// The end of a step keeps everything: it is then that the step turns out to be refused.
void StepUndo::begin_step(uint32_t step) {
  if (step == 0) return;
  kept_.clear();
  refused_at_ = 0;
}

void StepUndo::freed(Block* block) noexcept {
  const auto is_its = [&](const Kept& each) { return each.block == block; };
  kept_.erase(std::remove_if(kept_.begin(), kept_.end(), is_its), kept_.end());
}

bool StepUndo::take(std::vector<char>* contents, uint64_t* address) {
  if (kept_.empty()) {
    refused_at_ = 0;
    return false;
  }
  *contents = std::move(kept_.back().contents);
  *address = kept_.back().block->address;
  kept_.pop_back();
  return true;
}

void StepUndo::note_change(const Block& block) noexcept {
  const Record& record = block.record;
  const bool trained = record.role == UM_ROLE_PARAMETER || record.role == UM_ROLE_OPTIMIZER_STATE;
  if (!trained || record.birth_step == step() || refused_at_ != 0 || notes(block).watched) return;
  step_changed_ = step();
  changed_name_ = record.name;
  changed_role_ = record.role;
  changed_bytes_ = record.bytes;
}

std::string StepUndo::changes() const {
  if (step() == 0 || step_changed_ != step()) return "";
  const std::string name = name_of(changed_name_);
  const std::string kind = changed_role_ == UM_ROLE_PARAMETER ? "a parameter or buffer" : "an optimizer's state";
  return ". Before that the step had changed tensors, and they stay changed: the first is " +
         (name.empty() ? kind + " of " + in_words(changed_bytes_) : name);
}

}  // namespace um
