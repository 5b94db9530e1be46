#include "devices/emulated/ranges.h"

#include <algorithm>

namespace um::emulated {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the codes of CUresult

namespace {

uint32_t blocks_for(uint64_t bytes) { return static_cast<uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes); }

}  // namespace

Ranges::~Ranges() {
  while (!taken_.empty()) {
    const uint32_t first = taken_.first();
    if (!free(blocks_.address_of(first))) taken_.give(first);
  }
}

bool Ranges::promise_host_slots(uint64_t count) {
  if (count > blocks_.host_tier.slots() - promised_) return false;
  promised_ += count;
  return true;
}

uint64_t Ranges::take(uint32_t count, Kind kind) {
  const uint32_t first = taken_.find_room(count);
  if (first == Model::kNone) return 0;
  taken_.take(first, count);
  const SpinGuard guard(blocks_.lock);
  if (kind == Kind::managed) migrator_.model.allocate(first, count);
  for (uint32_t index = first; index < first + count; ++index) {
    Block& block = blocks_[index];
    block.kind = kind;
    block.tag = devices::ResidentBlocks::kUntagged;
    block.reservation = first;
  }
  return blocks_.address_of(first);
}

uint64_t Ranges::allocate_managed(uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(lock);
  const uint32_t count = blocks_for(bytes);
  if (bytes > kSpanBytes || !promise_host_slots(count)) return 0;
  const uint64_t address = take(count, Kind::managed);
  if (address == 0) return_host_slots(count);
  return address;
}

uint64_t Ranges::allocate_plain(uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(lock);
  const uint32_t count = blocks_for(bytes);
  if (bytes > kSpanBytes || count > blocks_.device_tier.slots()) return 0;
  const uint32_t first = taken_.find_room(count);
  if (first == Model::kNone) return 0;
  Moment over(link_);
  const SpinGuard guard(blocks_.lock);
  link_.begin(link_.now_ns());
  migrator_.plain.return_remnant();
  uint32_t index = first;
  for (; index < first + count && migrator_.take_chunk(); ++index) {
    Block& block = blocks_[index];
    block.tag = devices::ResidentBlocks::kUntagged;
    const bool there = blocks_.take_device_slot(index);
    if (there) blocks_.device_tier.populate(block.slot(true));
    if (!there || !blocks_.mapper.show(blocks_.device_tier, block.slot(true), blocks_.address_of(index), true)) {
      blocks_.give_device_slot(index);
      migrator_.plain.give();
      break;
    }
    block.mapping = Mapping::device_write;
    block.kind = Kind::plain;
  }
  const bool complete = index == first + count;
  while (!complete && index > first) release_block(--index);
  migrator_.withhold_remnant();
  over.ns = link_.at_ns();
  if (!complete) return 0;
  taken_.take(first, count);
  return blocks_.address_of(first);
}

bool Ranges::free(uint64_t address) {
  const std::lock_guard<std::mutex> ranges(lock);
  const uint32_t first = place_of(address).block, count = taken_.count_at(first);
  if (count == 0 || blocks_.address_of(first) != address) return false;
  const SpinGuard guard(blocks_.lock);
  if (blocks_[first].kind == Kind::reserved) return false;
  if (blocks_[first].kind == Kind::managed) return_host_slots(count);
  for (uint32_t block = first; block < first + count; ++block) release_block(block);
  taken_.give(first);
  migrator_.withhold_remnant();
  return true;
}

void Ranges::release_block(uint32_t index) {
  Block& block = blocks_[index];
  migrator_.hide(index);
  if (block.kind == Kind::managed) migrator_.model.release(index);
  if (block.kind == Kind::plain) migrator_.plain.give();
  blocks_.give_device_slot(index);
  blocks_.give_host_slot(index);
  block.kind = Kind::free;
  block.had = false;
  block.ready_ns = 0;
}

uint64_t Ranges::bytes_at(uint64_t address) {
  const std::lock_guard<std::mutex> ranges(lock);
  const uint32_t first = place_of(address).block;
  return blocks_.address_of(first) == address ? taken_.count_at(first) * kBlockBytes : 0;
}

uint64_t Ranges::free_bytes() {
  const SpinGuard guard(blocks_.lock);
  return migrator_.plain.free_chunks() * kBlockBytes;
}

CUresult Ranges::reserve(uint64_t bytes, CUdeviceptr* address) {
  if (bytes == 0 || bytes % kBlockBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kSpanBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> ranges(lock);
  const uint64_t taken = take(blocks_for(bytes), Kind::reserved);
  if (taken == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = taken;
  return CUDA_SUCCESS;
}

CUresult Ranges::free_reserved(uint64_t address, uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(lock);
  const uint32_t first = place_of(address).block, count = taken_.count_at(first);
  if (count == 0 || blocks_.address_of(first) != address || count * kBlockBytes != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const SpinGuard guard(blocks_.lock);
  const auto unmapped = [](const Block& block) {
    return block.kind == Kind::reserved && block.device_slot == 0 && block.host_slot == 0;
  };
  if (!std::all_of(&blocks_[first], &blocks_[first] + count, unmapped)) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t block = first; block < first + count; ++block) blocks_[block].kind = Kind::free;
  taken_.give(first);
  return CUDA_SUCCESS;
}

}  // namespace um::emulated
