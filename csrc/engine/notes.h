// The engine's notes of an allocation. The heap stores them in each block, and does not read them.
#pragma once

#include <cstdint>

#include "memory/arena.h"

namespace um {

struct Movable;

struct Notes {
  Movable* movable;  // of memory that may be evicted; engine/movable.h
  void* owner;       // of other memory, if owners are remembered; engine/conversion.h
  uint64_t lasting;  // the number of the last request for a lasting export; 0: none
  uint32_t exports;  // how many exports hold it on the device
  uint32_t tracked;  // the number under which its residency is followed; engine/residency.h
  bool gave_way;     // a lasting export does not hold it any more, or never did (CUDA), and its address is still known
  bool seen;         // an op used it as a tensor's storage
  bool workspace;    // a library allocated it for kernels that no op announces
  bool watched;      // a refused step restores its contents; engine/step_undo.h
  bool discarded;    // its contents are not needed; true when it is freed, because a plan said so
};

inline Notes& notes(Block& block) { return block.owners.as<Notes>(); }
inline const Notes& notes(const Block& block) { return block.owners.as<Notes>(); }

}  // namespace um
