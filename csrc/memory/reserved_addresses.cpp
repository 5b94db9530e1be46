#include "memory/reserved_addresses.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/places.h"
#include "memory/room.h"

namespace um {

ReservedAddress* ReservedAddresses::enter(std::unique_ptr<ReservedAddress> made) {
  make_room(ended_, ended_.size() + all_.size() + 1);
  ReservedAddress* const reserved = made.get();
  all_.emplace(reserved->range.address, std::move(made));
  return reserved;
}

ReservedAddress* ReservedAddresses::reserve(Block* whose, uint64_t chunks, uint64_t offset_bytes) {
  auto made = std::make_unique<ReservedAddress>();
  made->offset_bytes = offset_bytes;
  made->chunks = chunks;
  made->whose = whose;
  Block* const room = rooms_.allocate(chunks * chunk_bytes_);
  const OnError undo([&] { rooms_.free(room, true); });
  made->range.room = room;
  made->range.address = room->address;
  ReservedAddress* const reserved = enter(std::move(made));
  park(room);
  return reserved;
}

ReservedAddress* ReservedAddresses::keep(Block* whose, ChunkRange* given, uint64_t offset_bytes) noexcept {
  try {
    auto made = std::make_unique<ReservedAddress>();
    made->offset_bytes = offset_bytes;
    made->chunks = given->chunks.size();
    made->whose = whose;
    made->range.address = given->address;
    ReservedAddress* const reserved = enter(std::move(made));
    reserved->range.room = ranges_.detach(given);
    if (reserved->range.room != nullptr) return reserved;
    given->handed_out = false;
    all_.erase(reserved->range.address);
  } catch (const std::exception&) {
    given->handed_out = false;
  }
  return nullptr;
}

void ReservedAddresses::map(ReservedAddress* reserved, const Chunks::List& chunks, RawAccess shown) {
  sweep(false);
  reserved->range.chunks = chunks;
  {
    const OnError undo([&] { reserved->range.chunks.clear(); });
    ranges_.mapping.map(reserved->range);
  }
  reserved->range.shown = RawAccess::write;
  const OnError undo([&] { unmap(reserved); });
  ranges_.mapping.show(&reserved->range, shown);
}

void ReservedAddresses::unmap(ReservedAddress* reserved, Block* room) noexcept {
  reserved->range.room = room;
  unmap(reserved);
}

// If the driver refuses, the addresses are still never mapped for another allocation.
void ReservedAddresses::unmap(ReservedAddress* reserved) noexcept {
  static_cast<void>(ranges_.mapping.unmap(&reserved->range));
  reserved->range.chunks.clear();
}

void ReservedAddresses::release(ReservedAddress* reserved, Fences::Fence last_use) noexcept {
  const auto found = all_.find(reserved->range.address);
  fences_.retain(last_use);
  ended_.push_back({std::move(found->second), last_use});
  all_.erase(found);
  sweep(false);
}

ReservedAddress* ReservedAddresses::find(uint64_t address) const {
  auto above = all_.upper_bound(address);
  if (above == all_.begin()) return nullptr;
  ReservedAddress* const found = std::prev(above)->second.get();
  return address < found->range.address + found->chunks * chunk_bytes_ ? found : nullptr;
}

bool ReservedAddresses::close(ReservedAddress* reserved) noexcept {
  if (reserved->mapped() && !ranges_.mapping.unmap(&reserved->range)) return false;
  reserved->range.chunks.clear();
  Block* const room = reserved->range.room;
  room->address = reserved->range.address;
  room->bytes = reserved->chunks * chunk_bytes_;
  rooms_.free(room, true);
  return true;
}

bool ReservedAddresses::sweep(bool all) noexcept {
  const auto ends = [&](Ended& each) {
    try {
      if (all) fences_.wait(each.last_use, Wait::chunk_taken);
    } catch (const std::exception&) {
      return false;
    }
    const bool unused = !each.reserved->mapped() || fences_.surely_passed(each.last_use, Wait::chunk_ready);
    if (!unused || !close(each.reserved.get())) return false;
    fences_.replace(&each.last_use);
    return true;
  };
  ended_.erase(std::remove_if(ended_.begin(), ended_.end(), ends), ended_.end());
  return ended_.empty();
}

}  // namespace um
