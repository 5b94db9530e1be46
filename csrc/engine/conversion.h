// Live allocations that change their kind of memory: managed, plain, or chunks. Each keeps what it is, and gets another
// place: its bytes are copied there, its owner is told, and the place that it had is given back.
#pragma once

#include "engine/notes.h"
#include "umadvise.h"

struct um_device;

namespace um {

class Conversion {
 public:
  explicit Conversion(um_device& device) : device_(device) {}

  // The lock is held, as for all. Who owns memory that is no Movable is remembered from now on, or no longer.
  void remember(um_owners which) noexcept;
  bool remembers() const { return remembered_ != UM_OWNERS_FORGOTTEN; }
  bool converts_in_ops() const { return remembered_ == UM_OWNERS_CONVERTED_IN_OPS; }
  // An allocation shows its address as that of a storage.
  void meet(Block* block, void* storage);
  void forget(Block* block) noexcept;

  // Allocations that a running op was given or has made stay. Throws um::Error where the driver fails; allocations
  // that were converted before the failure stay converted.
  um_converted convert(const um_conversion& to);

 private:
  bool may_move(const Block& block, const um_conversion& to) const;
  bool move(Block* block, const um_placement& to);
  bool to_movable(Block* block);
  bool to_heap(Block* block, const um_placement& to);
  bool show(Block* block, uint64_t address) noexcept;
  void change_place(Block* block, Block* place) noexcept;
  struct Piece {
    uint64_t offset_bytes, bytes;
  };
  void copy_to_pages(uint64_t bytes, const Block& to, const Block& from, const Movable* movable_from);
  void copy(Piece piece, const Block& to, const Movable* movable_to, const Block& from, const Movable* movable_from);

  um_device& device_;
  um_owners remembered_ = UM_OWNERS_FORGOTTEN;
};

}  // namespace um
