#include "engine/handed_on.h"

namespace um {

namespace {

// Programs come and go, and nobody asks again for what those handed on that went. Then all is learned anew.
constexpr size_t kMostKnown = size_t{1} << 16;

}  // namespace

void HandedOn::leave(const Program& program, const std::vector<Block*>& bound) {
  left_.clear();
  for (int32_t storage = 0; storage < program.storage_count(); ++storage) {
    Block* const block = bound[static_cast<size_t>(storage)];
    if (block != nullptr && !program.state(storage)) left_[block->record.serial] = {block, program.first_key + storage};
  }
}

void HandedOn::each_known(const Program& program, const std::function<void(Block*, int32_t storage)>& each) const {
  for (const auto& [serial, left] : left_) {
    const auto found = became_.find(place(left.key, program));
    if (found != became_.end() && found->second < program.storage_count()) each(left.block, found->second);
  }
}

void HandedOn::learn(Block* block, const Program& program, int32_t storage) {
  const auto found = left_.find(block->record.serial);
  if (found == left_.end()) return;
  if (became_.size() >= kMostKnown) became_.clear();
  became_[place(found->second.key, program)] = storage;
  left_.erase(found);
}

}  // namespace um
