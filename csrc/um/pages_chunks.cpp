#include "um/pages_chunks.h"

#include <algorithm>

namespace um::pages {

using rules::Queue;

Chunks::Chunks(uint32_t roots, uint32_t pages_per_root)
    : pages_per_root_(pages_per_root), roots_(roots), order_(roots_.data()) {
  for (uint32_t root = roots; root > 0; --root) free_.push_back(root - 1);
}

uint32_t Chunks::take_root(uint32_t block) {
  if (free_.empty()) return kNone;
  const uint32_t root = free_.back();
  free_.pop_back();
  roots_[root].block = block;
  order_.move_to_tail(root, Queue::used);
  return root;
}

bool Chunks::take_piece(uint32_t block, Region pages) {
  for (uint32_t root : split_roots_)
    if (place(root, block, pages)) return true;
  if (free_.empty()) return false;
  const uint32_t root = free_.back();
  free_.pop_back();
  roots_[root].split = std::make_unique<Split>();
  split_roots_.push_back(root);
  return place(root, block, pages);
}

// Pieces lie on multiples of their own size. Every new one puts its root at the tail of the used
// (chunk_update_lists_locked); later services of small blocks do not.
bool Chunks::place(uint32_t root, uint32_t block, Region pages) {
  Root& here = roots_[root];
  Split& split = *here.split;
  for (uint32_t slot = 0; slot + pages.pages() <= pages_per_root_; slot += pages.pages()) {
    const Region room{slot, slot + pages.pages()};
    if (split.taken.count(room) != 0) continue;
    split.taken.fill(room);
    split.pieces.push_back({block, pages, root, slot});
    order_.remove(root);
    if (!here.pinned) pinned_.push_back(root);
    here.pinned = true;
    return true;
  }
  return false;
}

void Chunks::unpin_all() {
  for (uint32_t root : pinned_) {
    roots_[root].pinned = false;
    order_.move_to_tail(root, Queue::used);
  }
  pinned_.clear();
}

void Chunks::give_root(uint32_t root) {
  Root& here = roots_[root];
  order_.remove(root);
  if (here.split) split_roots_.erase(std::find(split_roots_.begin(), split_roots_.end(), root));
  here.split.reset();
  here.block = kNone;
  free_.push_back(root);
}

// Freed parts put the rest of their root at the tail too (chunk_update_lists_locked).
void Chunks::give_pieces_of(uint32_t block) {
  const std::vector<uint32_t> roots = split_roots_;
  for (uint32_t root : roots) {
    Split& split = *roots_[root].split;
    std::vector<Piece> kept;
    PageMask taken;
    for (const Piece& piece : split.pieces) {
      if (piece.block == block) continue;
      kept.push_back(piece);
      taken.fill({piece.slot, piece.slot + piece.pages.pages()});
    }
    if (kept.size() == split.pieces.size()) continue;
    split.pieces = kept;
    split.taken = taken;
    if (kept.empty()) {
      give_root(root);
    } else {
      order_.move_to_tail(root, Queue::used);
    }
  }
}

}  // namespace um::pages
