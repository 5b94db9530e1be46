#include "engine/matching/cross_program_bindings.h"

namespace um {

namespace {

// Bounds the pairs that are known: those of dropped programs are never asked for again.
constexpr size_t kMostKnown = size_t{1} << 16;

}  // namespace

void CrossProgramBindings::remember(const Program& program, const std::vector<Block*>& bound) {
  carried_.clear();
  for (int32_t storage = 0; storage < program.storage_count(); ++storage) {
    Block* const block = bound[static_cast<size_t>(storage)];
    if (block != nullptr && !program.persistent(storage))
      carried_[block->record.serial] = {block, program.first_key + storage};
  }
}

void CrossProgramBindings::each_known(const Program& program,
                                      const std::function<void(Block*, int32_t storage)>& each) const {
  for (const auto& [serial, carried] : carried_) {
    const auto found = known_.find(place(carried.key, program));
    if (found != known_.end() && found->second < program.storage_count()) each(carried.block, found->second);
  }
}

void CrossProgramBindings::learn(Block* block, const Program& program, int32_t storage) {
  const auto found = carried_.find(block->record.serial);
  if (found == carried_.end()) return;
  if (known_.size() >= kMostKnown) known_.clear();
  known_[place(found->second.key, program)] = storage;
  carried_.erase(found);
}

}  // namespace um
