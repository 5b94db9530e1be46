#include "memory/places.h"

#include <utility>

namespace um {
namespace {

void relink(Block* block) noexcept {
  (block->previous != nullptr ? block->previous->next : block->arena->first) = block;
  if (block->next != nullptr) block->next->previous = block;
}

}  // namespace

void park(Block* block) noexcept {
  block->arena->leave(block);
  block->parked = true;
}

void claim(Block* block) noexcept {
  block->record = Record{};
  block->owners = {};
  block->parked = false;
  block->arena->enter(block);
}

void exchange_places(Block* moving, Block* parked) noexcept {
  moving->arena->leave(moving);
  std::swap(moving->address, parked->address);
  std::swap(moving->bytes, parked->bytes);
  std::swap(moving->arena, parked->arena);
  std::swap(moving->previous, parked->previous);
  std::swap(moving->next, parked->next);
  // Neighbours were linked to each other, so each is now linked to itself.
  if (moving->previous == moving) {
    moving->previous = parked;
    parked->next = moving;
  } else if (moving->next == moving) {
    moving->next = parked;
    parked->previous = moving;
  }
  relink(moving);
  relink(parked);
  moving->arena->enter(moving);
}

}  // namespace um
