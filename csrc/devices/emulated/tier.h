// One tier of memory: a memfd of fixed capacity in 2 MiB slots, each also mapped at a private alias for the device's
// own copies. The emulated GPU's memory is one tier, the host memory behind managed allocations another.
#pragma once

#include <cstdint>
#include <vector>

#include "base/lazy_array.h"

namespace um::emulated {

class Tier {
 public:
  static constexpr uint32_t kNoSlot = 0xFFFFFFFFu;

  // Throws std::bad_alloc; costs memory only as slots are used.
  Tier(const char* name, uint32_t slots);
  ~Tier();
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  // The most recently released slot, else one never used; kNoSlot when all are taken. Async-signal-safe, as all below.
  uint32_t take();
  void give(uint32_t slot);
  // Readable and writable as long as the slot's page tables are at home (see Mapper); elsewhere a touch still works,
  // through 512 minor faults.
  char* alias(uint32_t slot) const;
  // Makes sure that memory backs the slot, all pages in one call. True when they are new, hence zero.
  bool populate(uint32_t slot);
  // Gives the alias page tables of its own, all pages in one call; elsewhere they stay as well.
  void fill_tables(uint32_t slot) const;

  int file() const { return file_; }
  uint32_t slots() const { return slots_; }
  uint32_t taken() const { return never_used_ - static_cast<uint32_t>(free_.size()); }
  char* base() const { return base_; }
  uint64_t bytes() const;

 private:
  int file_ = -1;
  uint32_t slots_;
  uint32_t never_used_ = 0;     // slots from here on have no memory yet
  std::vector<uint32_t> free_;  // a stack, with room for all
  LazyArray<bool> populated_;   // by slot
  char* base_;
};

}  // namespace um::emulated
