// Bindings that a step of one program hands to a following step of another program.
//
// In a GAN, the generator's backward adds to gradients that the discriminator's step has made. They are not persistent,
// as each discriminator step makes them anew. So the generator's program cannot know them by serial number. This class
// learns which storage of the first program is which storage of the second one, and then binds it when a step begins.
//
// Example: storage 12 of program 1 (first key 0) is bound to gradient G when its step ends. In the next step, which
// follows program 2, an op is given G as storage 5. learn() stores (key 12, program 2) -> 5. The next time that program
// 2 follows program 1, each_known() returns the new gradient with storage 5 before the first op.
//
// Invariants: a remembered block is live, because freed() removes it. At most 65,536 pairs are known; when there are
// more, all are learned anew.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "engine/matching/program.h"
#include "memory/arena.h"

namespace um {

class CrossProgramBindings {
 public:
  // Remembers the bindings with which a step of the program ended, except those of persistent storages. `bound`: the
  // block of each storage, or nullptr.
  void remember(const Program& program, const std::vector<Block*>& bound);
  // Calls `each` for every remembered block whose storage in this program is known from an earlier step.
  void each_known(const Program& program, const std::function<void(Block*, int32_t storage)>& each) const;
  // Learns that a remembered block is this storage in a step of the program. Only the first call for a block counts.
  void learn(Block* block, const Program& program, int32_t storage);
  void freed(Block* block) noexcept { carried_.erase(block->record.serial); }
  void forget_carried() noexcept { carried_.clear(); }

 private:
  static uint64_t place(int32_t key, const Program& program) {
    return static_cast<uint64_t>(program.number) << 32 | static_cast<uint32_t>(key);
  }

  struct Carried {
    Block* block;
    int32_t key;  // its Record::storage in the step that ended
  };
  std::map<uint64_t, Carried> carried_;          // by serial number
  std::unordered_map<uint64_t, int32_t> known_;  // by key and program: the storage of that program
};

}  // namespace um
