// Maps an address to the arena that contains it: a table over 48-bit addresses in steps of 2 MiB, which is read without
// a lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/arena.h"

namespace um {

inline uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

class AddressMap {
 public:
  // Returns nullptr for addresses that are not ours. Another thread may close the arena at any time, unless the caller
  // has a live allocation in it, or holds its device's lock and has called find() again.
  Arena* find(uint64_t address) const {
    if (address >> kAddressBits != 0) return nullptr;
    const Leaf* leaf = root_[address >> kLeafShift].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr
                           : leaf->arena[address / kBlockBytes % kLeafEntries].load(std::memory_order_acquire);
  }
  // Throws um::Error or std::bad_alloc, and then has entered nothing.
  void enter(Arena* arena);
  void leave(const Arena* arena) noexcept;
  // Undoes leave().
  void restore(Arena* arena) noexcept;
  // Enters only a part of the arena, in which another arena lay.
  void restore(Arena* arena, uint64_t begin, uint64_t end) noexcept;

 private:
  static constexpr int kAddressBits = 48, kLeafShift = 34;
  static constexpr uint64_t kLeafEntries = (uint64_t{1} << kLeafShift) / kBlockBytes;
  struct Leaf {
    std::atomic<Arena*> arena[kLeafEntries];
  };
  void store(uint64_t begin, uint64_t end, Arena* value) noexcept;

  std::atomic<Leaf*> root_[uint64_t{1} << (kAddressBits - kLeafShift)] = {};  // a leaf is never freed
};

// The map of the process. It is never destroyed, because memory is still freed after static destructors have run.
inline AddressMap& address_map() {
  static AddressMap map;
  return map;
}

}  // namespace um
