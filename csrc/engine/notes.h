// What the engine notes of an allocation: the heap keeps it beside the block, and knows nothing of it.
#pragma once

#include <cstdint>

#include "memory/arena.h"

namespace um {

struct Movable;

struct Notes {
  Movable* movable;  // engine/movable.h: of memory that may leave the device
  void* owner;       // engine/conversion.h: of other memory, where owners are remembered
  uint64_t lasting;  // one of its exports has no end: when it was asked for last, in order; 0: none
  uint32_t exports;  // that hold it on the device
  uint32_t tracked;  // engine/residency.h: what it has on the device is followed under this number
  bool gave_way;     // an export without end holds it no more, or never did (CUDA): its address is still out
  bool seen;         // an op used it as a tensor's storage
  bool workspace;    // a library's own: kernels use it that no op announces
  bool watched;      // engine/step_undo.h: a refused step gives it its contents back
  bool discarded;    // a plan has said that nobody needs its contents: true when it is freed
};

inline Notes& notes(Block& block) { return block.owners.as<Notes>(); }
inline const Notes& notes(const Block& block) { return block.owners.as<Notes>(); }

}  // namespace um
