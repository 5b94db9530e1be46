#include "devices/simulated/ranges.h"

namespace um::simulator {

uint32_t Ranges::allocate(uint64_t bytes, Kind kind) {
  if (bytes > kSpanBytes) return Model::kNone;
  const auto count = static_cast<uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes);
  const uint32_t first = taken_.find_room(count);
  if (first == Model::kNone) return first;
  taken_.take(first, count);
  blocks_.begin(first, count, kind);
  return first;
}

uint64_t Ranges::allocate_managed(uint64_t bytes) {
  const uint64_t count = (bytes + kBlockBytes - 1) / kBlockBytes;
  if (managed_blocks_ + count > most_managed_blocks_) return 0;
  const uint32_t first = allocate(bytes, Kind::managed);
  if (first == Model::kNone) return 0;
  managed_blocks_ += count;
  migrator_.model.allocate(first, static_cast<uint32_t>(count));
  return blocks_.address_of(first);
}

uint64_t Ranges::allocate_plain(uint64_t bytes) {
  const uint64_t count = (bytes + kBlockBytes - 1) / kBlockBytes;
  if (count > chunks_) return 0;
  const uint32_t first = allocate(bytes, Kind::plain);
  if (first == Model::kNone) return 0;
  migrator_.plain.return_remnant();
  uint32_t taken = 0;
  while (taken < count && migrator_.take_chunk()) blocks_.place_on_device(first + taken++);
  const bool complete = taken == count;
  if (!complete) {
    for (uint32_t block = first; block < first + count; ++block) {
      if (block >= first + taken) blocks_[block].kind = Kind::free;  // it has no chunk to give
      release_block(block);
    }
    taken_.give(first);
  }
  migrator_.withhold_remnant();
  migrator_.end_migration();
  return complete ? blocks_.address_of(first) : 0;
}

uint64_t Ranges::reserve(uint64_t bytes) {
  const uint32_t first = allocate(bytes, Kind::reserved);
  return first == Model::kNone ? 0 : blocks_.address_of(first);
}

bool Ranges::take_physical(uint64_t blocks) {
  migrator_.plain.return_remnant();
  uint64_t taken = 0;
  while (taken < blocks && migrator_.take_chunk()) ++taken;
  if (taken < blocks) {
    give_physical(taken);
    return false;
  }
  migrator_.withhold_remnant();
  return true;
}

void Ranges::give_physical(uint64_t blocks) {
  for (; blocks > 0; --blocks) migrator_.plain.give();
}

bool Ranges::free(uint64_t address) {
  const uint32_t first = blocks_.index_of(address);
  const uint32_t count = address % kBlockBytes == 0 ? taken_.count_at(first) : 0;
  if (count == 0) return false;
  if (blocks_[first].kind == Kind::managed) managed_blocks_ -= count;
  for (uint32_t block = first; block < first + count; ++block) release_block(block);
  taken_.give(first);
  migrator_.withhold_remnant();
  migrator_.end_migration();
  return true;
}

void Ranges::release_block(uint32_t index) {
  if (blocks_[index].kind == Kind::managed) migrator_.model.release(index);
  if (blocks_[index].kind == Kind::plain) migrator_.plain.give();
  blocks_.end(index);
}

}  // namespace um::simulator
