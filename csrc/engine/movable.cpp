#include "engine/movable.h"

#include "base/assert.h"

namespace um {

bool Movable::check() const {
  const bool on_device = where != Where::host && where != Where::queued;
  UM_ASSERT(block != nullptr);
  UM_ASSERT(on_device == (residence.range != nullptr));
  UM_ASSERT(!on_device || (residence.range->held && block->address >= residence.range->address) ||
            MovableMemory::at_reserved(residence));
  UM_ASSERT(on_device || (residence.copy == nullptr && !copied && !spare));
  UM_ASSERT(!copied || residence.copy != nullptr);
  UM_ASSERT(where != Where::leaving || (copied && !spare && pins == 0));
  UM_ASSERT(where != Where::arriving || !copying_out);
  UM_ASSERT(!copying_out || moved != 0);
  UM_ASSERT((on_device && where != Where::leaving) || (older == nullptr && newer == nullptr));
  return true;
}

}  // namespace um
