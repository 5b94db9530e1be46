#include "engine/device_base.h"

#include <utility>

#include "memory/address_map.h"

namespace um {

DeviceBase::DeviceBase(um_device* its_handle, Backend its_backend, Owners& its_owners)
    : handle(its_handle),
      backend(std::move(its_backend)),
      owners(its_owners),
      allocations(std::make_unique<Allocations>(its_handle, backend)),
      fences(std::make_unique<Fences>(backend)) {}

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
