// Which op something belongs to.
#pragma once

#include <cstdint>

namespace um {

// All 0 outside ops and steps.
struct OpIdentity {
  uint32_t step = 0, index = 0, op = 0, module = 0, phase = 0;
};

}  // namespace um
