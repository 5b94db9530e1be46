// How an allocation changes its place. A Block is both: somebody's allocation, with all that is remembered of it, and
// the place where it lies. What moves takes over another block's place, and leaves that one its own; who asks for an
// address finds the allocation that lies there now.
//
// A parked block is a place that is nobody's: it is found under no address.
#pragma once

#include "memory/arena.h"

namespace um {

// An allocated block becomes a place, or one that was parked an allocation of which nothing is remembered.
void park(Block* block) noexcept;
void claim(Block* block) noexcept;
// `moving` lies where `parked` did, and the other way round.
void exchange_places(Block* moving, Block* parked) noexcept;

}  // namespace um
