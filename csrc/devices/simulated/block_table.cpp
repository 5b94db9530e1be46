#include "devices/simulated/block_table.h"

namespace um::simulator {

bool BlockTable::managed(uint64_t address, uint64_t bytes) const {
  const uint64_t end_bytes = blocks_.size() * kBlockBytes;
  bool all = bytes > 0 && address >= base_ && address - base_ < end_bytes && bytes <= end_bytes - (address - base_);
  if (!all) return false;
  each_piece(address, bytes,
             [&](uint32_t block, uint64_t, uint64_t) { all = all && blocks_[block].kind == Kind::managed; });
  return all;
}

void BlockTable::begin(uint32_t first, uint32_t count, Kind kind) {
  if (blocks_.size() < first + count) blocks_.resize(first + count);
  for (uint32_t block = first; block < first + count; ++block) {
    blocks_[block] = {};
    blocks_[block].kind = kind;
    blocks_[block].tag = devices::ResidentBlocks::kUntagged;
  }
}

void BlockTable::place_on_device(uint32_t index) {
  blocks_[index].on_device = true;
  resident_.add(blocks_[index].tag);
}

void BlockTable::end(uint32_t index) {
  Block& block = blocks_[index];
  if (block.on_device) resident_.subtract(block.tag);
  host_blocks_ -= block.on_host;
  block = {};
}

void BlockTable::follow(const Outcome& outcome) {
  for (int i = 0; i < outcome.count; ++i) {
    const Action& action = outcome.actions[i];
    Block& block = blocks_[action.block];
    const bool was_on_device = block.on_device, was_on_host = block.on_host;
    switch (action.what) {
      case Do::evict_copy:
        block.on_host = true;
        [[fallthrough]];
      case Do::evict_drop:
      case Do::drop_device:
        block.on_device = false;
        break;
      case Do::zero_device:
      case Do::copy_h2d:
        block.on_device = true;
        break;
      case Do::zero_host:
      case Do::copy_d2h:
        block.on_host = true;
        break;
      case Do::drop_host:
        block.on_host = false;
        break;
    }
    if (block.on_device && !was_on_device) resident_.add(block.tag);
    if (!block.on_device && was_on_device) resident_.subtract(block.tag);
    host_blocks_ += static_cast<uint64_t>(block.on_host) - static_cast<uint64_t>(was_on_host);
  }
}

void BlockTable::residency(uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks) const {
  *device_blocks = *host_blocks = 0;
  each_piece(address, bytes, [&](uint32_t block, uint64_t, uint64_t) {
    *device_blocks += blocks_[block].on_device;
    *host_blocks += blocks_[block].on_host;
  });
}

void BlockTable::tag(uint64_t address, uint64_t bytes, uint32_t tag) {
  each_piece(address, bytes, [&](uint32_t index, uint64_t, uint64_t) {
    Block& block = blocks_[index];
    if (block.on_device) resident_.retag(block.tag, static_cast<uint8_t>(tag));
    block.tag = static_cast<uint8_t>(tag);
  });
}

void BlockTable::tell(driver::DeviceTotals& totals) const {
  totals.host_bytes = host_blocks_ * kBlockBytes;
  resident_.tell(totals);
}

}  // namespace um::simulator
