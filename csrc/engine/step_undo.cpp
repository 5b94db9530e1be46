#include "engine/step_undo.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/device_base.h"
#include "memory/address_map.h"
#include "memory/host_memory.h"
#include "memory/names.h"
#include "umadvise_waits.h"

namespace um {

uint32_t StepUndo::step() const { return base_.ops.step; }

void StepUndo::watch(Block* block) {
  notes(*block).watched = true;
  base_.participants.join(*this);
}

void StepUndo::begin_refused() {
  refused_at_ = base_.allocations->last_serial();
  changed_ = changes();
  base_.participants.join(*this);
}

// Swapping has its turn before this, so an operand that moves can be read where it lies.
void StepUndo::begin_op(RunningOp& op) {
  if (step() == 0) return;
  for (const Operand& operand : base_.ops.operands) {
    Block& block = *operand.block;
    if (operand.access->write == 0 || managed(block)) continue;
    const bool outlives = refused_at_ != 0 && block.record.serial <= refused_at_;
    if (!(notes(block).watched || outlives) || is_kept(block)) continue;
    if (!keep(&block, op.stream)) note_change(block);
  }
}

// Returns false if the host has no memory for the contents.
bool StepUndo::keep(Block* block, driver::CUstream stream) {
  const Backend& backend = base_.backend;
  if (backend.hooks->in_host) {
    const auto* const bytes = reinterpret_cast<const char*>(block->address);
    kept_.push_back({block, std::vector<char>(bytes, bytes + block->record.bytes)});
    return true;
  }
  const RequiredContext current(backend);
  HostCopies* const its = copies();
  Block* const copy = its->take(block->record.bytes, &stream);
  if (copy == nullptr) return false;
  Kept kept{block, {}, its, copy};
  const OnError undo([&] {
    if (!left_out(Wait::copy_failed)) static_cast<void>(backend.call().stream_synchronize(stream));
    drop(&kept);
  });
  kept_.reserve(kept_.size() + 1);
  backend.check(backend.call().memcpy_dtoh_async(reinterpret_cast<void*>(copy->address), block->address,
                                                 block->record.bytes, stream),
                "keeping what a step changes");
  kept.copied = base_.fences->record(&stream, 1);
  kept_.push_back(std::move(kept));
  return true;
}

bool StepUndo::is_kept(const Block& block) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& each) { return each.block == &block; });
}

// The contents are kept beyond the step's end, because the refusal is reported only then.
void StepUndo::begin_step(uint32_t step) {
  if (step == 0) return;
  forget();
  refused_at_ = 0;
}

void StepUndo::forget() noexcept {
  for (Kept& each : kept_) drop(&each);
  kept_.clear();
}

void StepUndo::close() noexcept {
  forget();
  copies_.reset();
}

HostCopies* StepUndo::copies() {
  if (swaps_copies != nullptr) return swaps_copies;
  if (copies_ == nullptr) {
    copies_ = std::make_unique<HostCopies>(base_.handle, base_.backend, *base_.fences, base_.allocations->blocks(), 0,
                                           HostCopies::kSmallSlabBytes);
  }
  return copies_.get();
}

// The memory may be reused after the copy into it.
void StepUndo::drop(Kept* kept) noexcept {
  if (kept->copy != nullptr) kept->its->give(std::exchange(kept->copy, nullptr), kept->copied);
  base_.fences->replace(&kept->copied);
}

void StepUndo::freed(Block* block) noexcept {
  const auto its = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) { return each.block == block; });
  if (its == kept_.end()) return;
  drop(&*its);
  kept_.erase(its);
}

bool StepUndo::take(std::vector<char>* contents, uint64_t* address) {
  if (kept_.empty()) {
    refused_at_ = 0;
    return false;
  }
  Kept& last = kept_.back();
  if (last.copy != nullptr) {
    const RequiredContext current(base_.backend);
    base_.fences->wait(last.copied, Wait::step_undone);
    const auto* const bytes = reinterpret_cast<const char*>(last.copy->address);
    last.contents.assign(bytes, bytes + last.block->record.bytes);
  }
  *contents = std::move(last.contents);
  *address = last.block->address;
  drop(&last);
  kept_.pop_back();
  return true;
}

void StepUndo::note_change(const Block& block) noexcept {
  const Record& record = block.record;
  const bool trained = record.role == UM_ROLE_PARAMETER || record.role == UM_ROLE_OPTIMIZER_STATE;
  if (!trained || record.birth_step == step() || refused_at_ != 0) return;
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
