// Exports: allocations whose address code outside of ops has are held on the device.
//
// An export either ends with release(), or is *lasting*: its end cannot be observed, as for data_ptr(). A lasting
// export ends when memory runs out, the one that was asked for longest ago first.
//
// Example: data_ptr() of a tensor of 3 MiB pins it. When an op finds no device memory, and nothing else can be evicted,
// end_oldest() unpins it. The address remains reserved for the tensor (memory/reserved_addresses.h).
#pragma once

#include "base/thread_safety.h"
#include "engine/budget_keeper.h"
#include "engine/device_base.h"
#include "engine/swapping.h"
#include "umadvise.h"

namespace um {

class Exports {
 public:
  // `budget` and `swapping` end exports through this object.
  Exports(DeviceBase& base, BudgetKeeper& budget, Swapping& swapping);
  Exports(const Exports&) = delete;
  Exports& operator=(const Exports&) = delete;

  // These functions throw um::Error. `address` lies in the block.
  // Returns the present address of the same byte, because becoming resident may move the allocation.
  uint64_t add(Block* block, uint64_t address) REQUIRES(device_lock);
  void add_lasting(Block* block) REQUIRES(device_lock);
  void release(Block* block) REQUIRES(device_lock);

  // Ends the lasting export of this kind of memory that was asked for longest ago, if nothing else pins its allocation:
  // the code that asked has most likely used the address. Returns false if there is none. The context is current.
  // Throws um::Error.
  bool end_oldest(um_memory memory) REQUIRES(device_lock);
  // Ends such exports of managed memory until all exports together hold at most so many bytes of it. Returns false if
  // other exports hold more.
  bool keep_pages_below(uint64_t bytes) REQUIRES(device_lock);
  // Returns the bytes of all pages that the allocation touches.
  static uint64_t page_bytes(const Block& block) {
    return Budget::spanned_bytes(block.address, block.end() - block.address);
  }

 private:
  uint64_t pinned_page_bytes() const;
  void end(Block* block) noexcept REQUIRES(device_lock);

  DeviceBase& base_;
  uint64_t last_lasting_ = 0;  // counts the requests for lasting exports
};

}  // namespace um
