#include "memory/address_map.h"

#include <string>

#include "base/error.h"

namespace um {

void AddressMap::enter(Arena* arena) {
  const uint64_t last = arena->address() + arena->bytes() - 1;
  if (last >> kAddressBits != 0) {
    throw Error(UM_UNSUPPORTED, "the driver gave memory above the 48-bit addresses that this library tells apart (" +
                                    std::to_string(arena->address()) + ")");
  }
  for (uint64_t at = arena->address() >> kLeafShift; at <= last >> kLeafShift; ++at) {
    if (root_[at].load(std::memory_order_acquire) != nullptr) continue;
    Leaf* fresh = new Leaf();
    Leaf* other = nullptr;  // another device may add the same leaf now
    if (!root_[at].compare_exchange_strong(other, fresh, std::memory_order_acq_rel)) delete fresh;
  }
  restore(arena);
}

void AddressMap::leave(const Arena* arena) noexcept {
  store(arena->address(), arena->address() + arena->bytes(), nullptr);
}

void AddressMap::restore(Arena* arena) noexcept { store(arena->address(), arena->address() + arena->bytes(), arena); }

void AddressMap::restore(Arena* arena, uint64_t begin, uint64_t end) noexcept { store(begin, end, arena); }

void AddressMap::store(uint64_t begin, uint64_t end, Arena* value) noexcept {
  for (uint64_t at = begin; at < end; at += kBlockBytes) {
    Leaf* leaf = root_[at >> kLeafShift].load(std::memory_order_relaxed);
    leaf->arena[at / kBlockBytes % kLeafEntries].store(value, std::memory_order_release);
  }
}

}  // namespace um
