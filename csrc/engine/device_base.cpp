#include "engine/device_base.h"

#include <algorithm>

#include "memory/address_map.h"

namespace um {

Participants::Participants() {
  for (std::vector<Participant*>* all : {&begins_, &ends_, &memory_}) all->reserve(kMostParticipants);
}

void Participants::join(Participant& participant) noexcept {
  leave(participant);
  const auto enter = [&](std::vector<Participant*>& all, uint8_t Turns::* turn) {
    const uint8_t own = participant.turns.*turn;
    const auto later = [&](const Participant* each) { return each->turns.*turn > own; };
    if (own != kNever) all.insert(std::find_if(all.begin(), all.end(), later), &participant);
  };
  enter(begins_, &Turns::begin);
  enter(ends_, &Turns::end);
  enter(memory_, &Turns::memory);
}

void Participants::leave(Participant& participant) noexcept {
  for (std::vector<Participant*>* all : {&begins_, &ends_, &memory_})
    all->erase(std::remove(all->begin(), all->end(), &participant), all->end());
}

Arena* DeviceBase::own_arena(uint64_t address) const {
  Arena* arena = address_map().find(address);
  return arena != nullptr && arena->device.load(std::memory_order_relaxed) == handle ? arena : nullptr;
}

Block* DeviceBase::own_block(const void* address) const {
  const uint64_t at = address_of(address);
  const Arena* arena = own_arena(at);
  if (arena == nullptr) return nullptr;
  Block* block = arena->starting_at(at);
  return block != nullptr ? block : arena->containing(at);
}

}  // namespace um
