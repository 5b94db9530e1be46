#include "devices/emulated/block_table.h"

namespace um::emulated {
namespace {

uint32_t slots_for(uint64_t bytes) { return static_cast<uint32_t>(bytes / kBlockBytes); }

}  // namespace

BlockTable::BlockTable(int device, const um_emulated_options& options, Mapper::Method method, EventRing& ring)
    : device_tier("umadvise-device", slots_for(options.capacity_bytes)),
      host_tier("umadvise-host", slots_for(options.host_bytes)),
      mapper(method),
      events(ring),
      device_(device) {}

bool BlockTable::take_device_slot(uint32_t index) {
  Block& block = blocks_[index];
  if (block.device_slot != 0) return true;
  block.device_slot = device_tier.take() + 1;
  if (block.device_slot == 0) return false;  // kNoSlot + 1
  resident.add(block.tag);
  events.push(driver::ResidencyChange::arrived, address_of(index));
  return true;
}

bool BlockTable::take_host_slot(uint32_t index) {
  Block& block = blocks_[index];
  if (block.host_slot == 0) block.host_slot = host_tier.take() + 1;
  return block.host_slot != 0;
}

void BlockTable::give_device_slot(uint32_t index) {
  Block& block = blocks_[index];
  if (block.device_slot == 0) return;
  device_tier.give(block.device_slot - 1);
  block.device_slot = 0;
  resident.subtract(block.tag);
  events.push(driver::ResidencyChange::left, address_of(index));
}

void BlockTable::give_host_slot(uint32_t index) {
  Block& block = blocks_[index];
  if (block.host_slot != 0) host_tier.give(block.host_slot - 1);
  block.host_slot = 0;
}

void BlockTable::residency(uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks) {
  *device_blocks = *host_blocks = 0;
  const SpinGuard guard(lock);
  each_piece(address, bytes, [&](uint32_t index, uint64_t, uint64_t) {
    *device_blocks += blocks_[index].device_slot != 0;
    *host_blocks += blocks_[index].host_slot != 0;
  });
}

void BlockTable::tag(uint64_t address, uint64_t bytes, uint32_t tag) {
  const SpinGuard guard(lock);
  each_piece(address, bytes, [&](uint32_t index, uint64_t, uint64_t) {
    Block& block = blocks_[index];
    if (block.device_slot != 0) resident.retag(block.tag, static_cast<uint8_t>(tag));
    block.tag = static_cast<uint8_t>(tag);
  });
}

void BlockTable::reset_peaks() {
  const SpinGuard guard(lock);
  resident.reset_peaks();
}

}  // namespace um::emulated
