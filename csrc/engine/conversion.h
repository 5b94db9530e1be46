// Moves live allocations between kinds of memory: managed, plain, or chunks. An allocation keeps its identity and gets
// another place: its bytes are copied there, its owner is re-pointed, and the old place is given back.
//
// Example: um_convert to chunks turns a managed parameter of 5 MiB into a Movable on the host, whose Record remains the
// same, and frees the managed pages.
#pragma once

#include "base/thread_safety.h"
#include "engine/notes.h"
#include "umadvise.h"

struct um_device;

namespace um {

class Conversion {
 public:
  explicit Conversion(um_device& device) : device_(device) {}

  // Sets whether owners of memory that is no Movable are remembered.
  void remember(um_owners which) noexcept;
  bool remembers() const { return remembered_ != UM_OWNERS_FORGOTTEN; }
  bool converts_in_ops() const { return remembered_ == UM_OWNERS_CONVERTED_IN_OPS; }
  // Notes the storage that shows the allocation's address.
  void meet(Block* block, void* storage) REQUIRES(device_lock);
  void forget(Block* block) noexcept;

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

  um_device& device_;
  um_owners remembered_ = UM_OWNERS_FORGOTTEN;
};

}  // namespace um
