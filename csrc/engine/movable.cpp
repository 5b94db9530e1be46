#include "engine/movable.h"

namespace um {

bool Movable::check() const {
  UM_ASSERT(block != nullptr);
  UM_ASSERT(state.out() == (residence.range == nullptr));
  UM_ASSERT(state.out() || residence.range->held);
  UM_ASSERT(state.out() || block->address >= residence.range->address || MovableMemory::at_reserved(residence));
  UM_ASSERT(!state.out() || (residence.copy == nullptr && state.has_source()));
  UM_ASSERT(state.out() || !state.has_source() || residence.copy != nullptr);
  UM_ASSERT(!state.is(Where::leaving) || (state.has_source() && pins == 0));
  UM_ASSERT(!state.is(Where::arriving) || !state.copying_out());
  UM_ASSERT(!state.copying_out() || moved != 0);
  UM_ASSERT(state.resident() || (older == nullptr && newer == nullptr && !state.evicted_first()));
  return true;
}

}  // namespace um
