// Which arena holds an address: a table over 48-bit addresses in steps of 2 MiB, read without a lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/arena.h"

namespace um {

inline uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

class AddressMap {
 public:
  // nullptr for addresses that are not ours. The arena may be closed by another thread at any time unless something
  // keeps it: a live allocation in it, or its device's lock after a second look.
  Arena* find(uint64_t address) const {
    if (address >> kAddressBits != 0) return nullptr;
    const Leaf* leaf = root_[address >> kLeafShift].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr
                           : leaf->arena[address / kBlockBytes % kLeafEntries].load(std::memory_order_acquire);
  }
  // Throws um::Error or std::bad_alloc and then has entered nothing.
  void enter(Arena* arena);
  void leave(const Arena* arena) noexcept;
  // Undoes leave().
  void restore(Arena* arena) noexcept;
  // Of a part of it alone, in which another arena lay.
  void restore(Arena* arena, uint64_t begin, uint64_t end) noexcept;

 private:
  static constexpr int kAddressBits = 48, kLeafShift = 34;
  static constexpr uint64_t kLeafEntries = (uint64_t{1} << kLeafShift) / kBlockBytes;
  struct Leaf {
    std::atomic<Arena*> arena[kLeafEntries];
  };
  void store(uint64_t begin, uint64_t end, Arena* value) noexcept;

  std::atomic<Leaf*> root_[uint64_t{1} << (kAddressBits - kLeafShift)] = {};  // leaves stay for ever
};

// The process's map, never destroyed: frees come after static destructors have run.
inline AddressMap& address_map() {
  static AddressMap map;
  return map;
}

}  // namespace um
