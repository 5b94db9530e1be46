// The op to which events are attributed.
#pragma once

#include <cstdint>

namespace um {

// All fields are 0 outside of ops and steps.
struct OpIdentity {
  uint32_t step = 0, index = 0, op = 0, module = 0, phase = 0;
};

}  // namespace um
