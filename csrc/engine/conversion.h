// Moves live allocations between kinds of memory: managed, plain, or chunks. An allocation keeps its identity and gets
// another place: its bytes are copied there, its owner is re-pointed, and the old place is given back.
//
// Example: um_convert to chunks turns a managed parameter of 5 MiB into a Movable on the host, whose Record remains the
// same, and frees the managed pages.
#pragma once

#include "base/thread_safety.h"
#include "engine/accounts.h"
#include "engine/budget_keeper.h"
#include "engine/device_base.h"
#include "engine/swapping.h"
#include "umadvise.h"

namespace um {

class Conversion {
 public:
  Conversion(DeviceBase& base, const SwapEvents& swaps, Sampling& sampling, Observation& observation,
             BudgetKeeper& budget, Accounts& accounts, Swapping& swapping)
      : base_(base),
        swaps_(swaps),
        sampling_(sampling),
        observation_(observation),
        budget_(budget),
        accounts_(accounts),
        swapping_(swapping) {}

  // Converts all allocations of other kinds. Operands and results of running ops are not converted. Throws um::Error if
  // the driver fails; allocations converted before the failure remain converted.
  um_converted convert(const um_conversion& to) REQUIRES(device_lock);

 private:
  bool may_move(const Block& block, const um_conversion& to) const;
  bool move(Block* block, const um_placement& to) REQUIRES(device_lock);
  bool to_movable(Block* block) REQUIRES(device_lock);
  bool to_heap(Block* block, const um_placement& to) REQUIRES(device_lock);
  bool show(Block* block, uint64_t address) noexcept;
  void change_place(Block* block, Block* place) noexcept REQUIRES(device_lock);
  struct Piece {
    uint64_t offset_bytes, bytes;
  };
  void copy_to_pages(uint64_t bytes, const Block& to, const Block& from, const Movable* movable_from)
      REQUIRES(device_lock);
  void copy(Piece piece, const Block& to, const Movable* movable_to, const Block& from, const Movable* movable_from);

  DeviceBase& base_;
  const SwapEvents& swaps_;
  Sampling& sampling_;
  Observation& observation_;
  BudgetKeeper& budget_;
  Accounts& accounts_;
  Swapping& swapping_;
};

}  // namespace um
