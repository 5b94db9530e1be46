// Exports: allocations whose address has left torch are held on the device. Some exports end when somebody says so;
// others last, as nobody sees their end, until they must give way to what finds no room.
#pragma once

#include "engine/notes.h"
#include "umadvise.h"

namespace um {

class Exports {
 public:
  explicit Exports(um_device& device) : device_(device) {}

  // The lock is taken. Throw um::Error.
  static void add(const void* address);
  static void add_lasting(const void* address);
  static void release(const void* address);
  // The address that an allocation shows for life in place of this one, to be compared with others: nothing is pinned.
  static uint64_t shown(const void* address);

  // Of those that last and that alone hold memory of this kind: whoever asked for it longest ago has most likely used
  // it. False: there is none. The lock is held, and the context current. Throws um::Error.
  bool end_oldest(um_memory memory);
  // Ends such exports of managed memory until exports hold at most so many bytes of it. False: exports that do not
  // last hold more.
  bool keep_pages_below(uint64_t bytes);
  // Of an allocation that is freed. The lock is held.
  void forget(const Block& block) noexcept;

 private:
  bool can_hold(const Block& block) const;
  void hold(Block* block, bool for_life);
  uint64_t pinned_page_bytes() const;
  bool exceeds_budget(const Block& block) const;
  void pin_pages(const Block& block);
  void end(Block* block) noexcept;

  um_device& device_;
  uint64_t last_lasting_ = 0;  // export, in the order in which they are asked for
};

}  // namespace um
