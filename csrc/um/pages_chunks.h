// The device's memory: root chunks of 2 MiB, for full blocks whole, for smaller blocks split (uvm/uvm_pmm_gpu.c).
#pragma once

#include <memory>
#include <vector>

#include "um/eviction_order.h"
#include "um/page_mask.h"

namespace um::pages {

inline constexpr uint32_t kNone = rules::kNone;

// A part of a split root: some pages of a small block.
struct Piece {
  uint32_t block;
  Region pages;         // of the block
  uint32_t root, slot;  // where they lie, in pages of the root
};

class Chunks {
 public:
  // `pages_per_root`: of the system's size.
  Chunks(uint32_t roots, uint32_t pages_per_root);

  // A free root for a full block, at the tail of the used; kNone when there is none.
  uint32_t take_root(uint32_t block);
  // Room for some pages of a small block in a root that is split already, or in a free one. The root counts as
  // just used, and stays pinned until `unpin_all`. False when there is none.
  bool take_piece(uint32_t block, Region pages);

  void give_root(uint32_t root);
  void give_pieces_of(uint32_t block);
  // A service of a full block: its chunk becomes the last to be evicted (among the discarded, if it is one).
  void refresh(uint32_t root, rules::Queue queue) { order_.move_to_tail(root, queue); }
  void unpin_all();

  uint32_t victim() const { return order_.first(); }  // kNone when every root is pinned
  bool split(uint32_t root) const { return roots_[root].split != nullptr; }
  uint32_t owner(uint32_t root) const { return roots_[root].block; }
  const std::vector<Piece>& pieces(uint32_t root) const { return roots_[root].split->pieces; }

 private:
  struct Split {
    PageMask taken;
    std::vector<Piece> pieces;
  };
  struct Root {
    uint32_t previous = 0, next = 0;
    uint32_t block = kNone;
    rules::Queue queue = rules::Queue::none;
    bool pinned = false;
    std::unique_ptr<Split> split;
  };

  bool place(uint32_t root, uint32_t block, Region pages);

  const uint32_t pages_per_root_;
  std::vector<Root> roots_;
  std::vector<uint32_t> free_, split_roots_, pinned_;
  rules::Order<Root> order_;
};

}  // namespace um::pages
