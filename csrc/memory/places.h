// Exchanges the places of allocations. A Block is an allocation with its record, and also the place where it lies. When
// an allocation moves, its block takes over the address of another block, and that one gets the old address. A lookup
// by address then finds the allocation that lies there now.
//
// Invariant: a parked block is a place without an allocation, and no address finds it.
#pragma once

#include "memory/arena.h"

namespace um {

// park() turns an allocated block into a place, and claim() turns a parked one into an allocation with an empty record.
void park(Block* block) noexcept;
void claim(Block* block) noexcept;
// Afterwards `moving` lies where `parked` was, and `parked` where `moving` was.
void exchange_places(Block* moving, Block* parked) noexcept;

}  // namespace um
