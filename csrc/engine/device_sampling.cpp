// A CUDA device's counters come from samples: see sampling.h.
#include <algorithm>

#include "base/error.h"
#include "engine/device.h"

void um_device::set_sampling(uint32_t every) {
  const Lock lock = lock_alive();
  if (backend_.hooks != nullptr) {
    throw um::Error(UM_UNSUPPORTED, "the emulated device counts every step exactly: there is nothing to sample");
  }
  if (sampling_ == nullptr) sampling_ = std::make_unique<um::Sampling>(this, backend_);
  sampling_->set_every(every);
}

void um_device::sampling(um_sampling* out) {
  const Lock lock = lock_alive();
  *out = sampling_ != nullptr ? sampling_->read() : um::Sampling(this, backend_).read();
}

bool um_device::is_sampled() const { return sampling_ != nullptr && sampling_->running(); }

bool um_device::has_managed() const {
  const std::vector<const um::Arena*> arenas = allocations_->arenas_by_address();
  return std::any_of(arenas.begin(), arenas.end(),
                     [](const um::Arena* arena) { return arena->heap->placement.memory == UM_MEMORY_MANAGED; });
}

// Before the step's number changes.
void um_device::end_sampled_step() {
  if (!is_sampled()) return;
  const um::RequiredContext current(backend_);
  sampling_->end_step(recording_ ? &events_ : nullptr);
}

void um_device::begin_sampled_step(uint32_t step) {
  if (sampling_ == nullptr) return;
  const um::RequiredContext current(backend_);
  sampling_->begin_step(step, has_managed());
}

// Before the driver makes managed memory, so that no record of it is missed. An op that runs has begun without faults.
void um_device::sample_faults() {
  if (!is_sampled() || sampling_->collecting()) return;
  const um::RequiredContext current(backend_);
  sampling_->expect_faults();
  if (um::running_op != nullptr && um::running_op->device == this) sample_begin(*um::running_op);
}

void um_device::sample_begin(um::RunningOp& op) noexcept {
  op.sampled = 0;
  if (!is_sampled()) return;
  const um::CurrentContext current(backend_);
  op.sampled = sampling_->begin_op(op.identity, op.stream);
}

void um_device::sample_end(const um::RunningOp& op) noexcept {
  if (op.sampled == 0 || !is_sampled()) return;
  const um::CurrentContext current(backend_);
  sampling_->end_op(op.sampled, op.stream);
}
