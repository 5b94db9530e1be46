// What a step of one program leaves to the next one of another, such as gradients that only the other one adds to:
// which storage of the one is which of the other, as ops have shown before. Not thread-safe: the device's lock is held.
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
  // A step of the program has ended, and its storages that are known are these.
  void remember(const Program& program, const std::vector<Block*>& bound);
  // Of those that are left, which storage of the program each was when it came after such a step before.
  void each_known(const Program& program, const std::function<void(Block*, int32_t storage)>& each) const;
  // That is what it is in a step of the program; only the first time counts.
  void learn(Block* block, const Program& program, int32_t storage);
  void freed(Block* block) noexcept { carried_.erase(block->record.serial); }
  void forget_carried() noexcept { carried_.clear(); }

 private:
  static uint64_t place(int32_t key, const Program& program) {
    return static_cast<uint64_t>(program.number) << 32 | static_cast<uint32_t>(key);
  }

  struct Carried {
    Block* block;
    int32_t key;  // that it had
  };
  std::map<uint64_t, Carried> carried_;          // by serial number
  std::unordered_map<uint64_t, int32_t> known_;  // by such a key and a program: the program's storage
};

}  // namespace um
