// A copy of the op stream, so that tests can compare it with a reference. Off, it costs one load.
#pragma once

#include <atomic>
#include <cstdint>

#include "hooks.h"

namespace um::hooks {

extern std::atomic<bool> recording;

struct OpDescription {
  uint32_t op, phase, module, creates;
};

// Returns the op's place in the stream, for its outputs. Serial numbers are looked up here, while the memory still
// lives.
uint64_t record_op(const OpDescription& description, const um_access* accesses, uint64_t count);
void record_outputs(uint64_t op, const void* const* outputs, uint64_t count);

}  // namespace um::hooks
