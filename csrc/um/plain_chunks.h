// The chunks that plain device memory takes from managed memory, and the remnant that is then withheld.
#pragma once

#include "um/model.h"

namespace um {

class PlainChunks {
 public:
  PlainChunks(Model& model, uint32_t chunks) : model_(model), chunks_(chunks) {}

  // One chunk, evicting when needed: `evict(outcome)` does that, and `done` becomes false where it could not. False,
  // and nothing is taken, when every chunk is pinned or taken.
  template <class Evict>
  bool take(const Evict& evict, bool& done) {
    Outcome outcome;
    if (!model_.take_chunk(outcome)) return false;
    done = evict(outcome) && done;
    ++plain_;
    return true;
  }
  void give() {
    model_.chunks.give_plain();
    --plain_;
  }

  // One instruction may need two blocks at once (an access across their edge), and several threads run: with fewer
  // chunks than that to share they would evict each other's for ever. What plain memory and pins leave below this is
  // withheld, so that managed blocks stay on the host and are mapped from there.
  template <class Evict>
  void withhold_remnant(const Evict& evict) {
    return_remnant();
    const uint32_t left = chunks_ - plain_ - model_.chunks.pinned();
    if (left >= kLeastChunks || left == chunks_) return;
    for (bool done = true; withheld_ < left && done;) {
      Outcome outcome;
      if (!model_.take_chunk(outcome)) break;
      ++withheld_;
      done = evict(outcome);
    }
  }
  void return_remnant() {
    for (; withheld_ > 0; --withheld_) model_.chunks.give_plain();
  }
  // What plain memory could have without any managed block leaving.
  uint32_t free_chunks() const { return model_.chunks.free() + withheld_; }

 private:
  static constexpr uint32_t kLeastChunks = 4;

  Model& model_;
  const uint32_t chunks_;
  uint32_t plain_ = 0, withheld_ = 0;
};

}  // namespace um
