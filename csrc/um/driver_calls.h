// What the calls of a driver ask of the model, one block at a time: the same for a device that moves bytes and for one
// that only counts. `apply(outcome, block)` does what an outcome says; false when that failed.
#pragma once

#include "um/model.h"

namespace um::calls {

// cuMemPrefetchAsync. A pinned block stays: the kernel may be at work on a part of it.
template <class Apply>
bool prefetch(Model& model, uint32_t block, Processor to, const Apply& apply) {
  if (to == Processor::host && model.chunks.pins(block) > 0) return true;
  return apply(model.prefetch(block, to), block);
}

// A store by the copy engine migrates like a prefetch, then ends a duplicate; remote where all chunks are pinned.
template <class Apply>
bool open_for_store(Model& model, uint32_t block, const Apply& apply) {
  const bool moved = apply(model.prefetch(block, Processor::device), block);
  return apply(model.access(block, Processor::device, true), block) && moved;
}

// Resident, writable and pinned. False, and not pinned, when that cannot be.
template <class Apply>
bool pin(Model& model, uint32_t block, const Apply& apply) {
  const bool there = apply(model.prefetch(block, Processor::device), block) &&
                     model.resident(block, Processor::device) &&
                     apply(model.access(block, Processor::device, true), block);
  if (there) model.chunks.pin(block);
  return there;
}

// cuMemDiscardBatchAsync. Whole blocks only: a part may still be wanted. True when it was one.
inline bool discard(Model& model, uint32_t block, uint64_t bytes) {
  if (bytes != kBlockBytes) return false;
  model.discard(block);
  return true;
}

}  // namespace um::calls
