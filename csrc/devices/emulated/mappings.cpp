#include "devices/emulated/mappings.h"

#include <algorithm>

#include "umadvise_waits.h"

namespace um::emulated {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the codes of CUresult

Mappings::~Mappings() {
  while (!mapped_.empty()) {
    const auto& [first, mapping] = *mapped_.begin();
    if (unmap(blocks_.address_of(first), mapping.count * kBlockBytes) != CUDA_SUCCESS) break;
  }
}

bool Mappings::whole_blocks(uint64_t address, uint64_t bytes, Run* out) const {
  const uint64_t begin = blocks_.address_of(0);
  if (bytes == 0 || bytes % kBlockBytes != 0 || bytes > kSpanBytes || address < begin) return false;
  const uint64_t offset = address - begin;
  if (offset % kBlockBytes != 0 || offset > kSpanBytes - bytes) return false;
  *out = {static_cast<uint32_t>(offset / kBlockBytes), static_cast<uint32_t>(bytes / kBlockBytes)};
  return true;
}

// One or more mappings, whole and without a gap.
bool Mappings::whole_mappings(uint64_t address, uint64_t bytes, Run* out) const {
  if (!whole_blocks(address, bytes, out)) return false;
  uint32_t block = out->first;
  for (auto each = mapped_.find(block); block < out->end() && each != mapped_.end() && each->first == block; ++each) {
    block += each->second.count;
  }
  return block == out->end();
}

// The slot counts for the device where it is mapped, under that block's tag.
void Mappings::put_slot(uint32_t index, const Handle& handle, uint32_t slot) {
  Block& block = blocks_[index];
  (handle.on_device ? block.device_slot : block.host_slot) = slot + 1;
  if (!handle.on_device) return;
  blocks_.resident.retag(devices::ResidentBlocks::kUntagged, block.tag);
  blocks_.events.push(driver::ResidencyChange::arrived, blocks_.address_of(index));
}

void Mappings::take_slot_away(uint32_t index) {
  Block& block = blocks_[index];
  if (block.device_slot != 0) {
    blocks_.resident.retag(block.tag, devices::ResidentBlocks::kUntagged);
    blocks_.events.push(driver::ResidencyChange::left, blocks_.address_of(index));
  }
  block.device_slot = block.host_slot = 0;
  block.veiled = block.has_tables = false;
}

CUresult Mappings::map(uint64_t address, uint64_t bytes, uint64_t handle) {
  const std::lock_guard<std::mutex> ranges(ranges_.lock);
  Run run{};
  Handle* const found = physical_.find(handle);
  if (found == nullptr || !whole_blocks(address, bytes, &run) || run.count > found->slots.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const SpinGuard guard(blocks_.lock);
  const uint32_t reservation = blocks_[run.first].reservation;
  const auto empty = [&](const Block& block) {
    return block.kind == Kind::reserved && block.reservation == reservation && block.device_slot == 0 &&
           block.host_slot == 0;
  };
  if (!std::all_of(&blocks_[run.first], &blocks_[run.first] + run.count, empty)) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t i = 0; i < run.count; ++i) put_slot(run.first + i, *found, found->slots[i]);
  mapped_.emplace(run.first, MappedRange{run.count, handle});
  ++found->mappings;
  return CUDA_SUCCESS;
}

// A copy uses the page tables that are about to change.
std::unique_lock<SpinLock> Mappings::lock_without_copies(Run run) {
  delays_.wait();
  for (;;) {
    std::unique_lock<SpinLock> guard(blocks_.lock);
    if (!copies_.at_work(run.first, run.count) || left_out(Wait::emulated_copies)) return guard;
    guard.unlock();
    sched_yield();
  }
}

bool Mappings::show_access(uint32_t index, uint8_t wanted) {
  Block& block = blocks_[index];
  if (wanted == block.visible()) return true;
  const auto access = (wanted & kWriteAccess) != 0  ? Mapper::Access::write
                      : (wanted & kReadAccess) != 0 ? Mapper::Access::read
                                                    : Mapper::Access::none;
  const uint64_t address = blocks_.address_of(index);
  if (block.has_tables) return blocks_.mapper.protect(address, access);
  const bool on_device = block.device_slot != 0;
  // Hollow memory is pages of zeros, a few of which small copies write; neighbours are one mapping to the kernel.
  block.has_tables = blocks_.hollow
                         ? blocks_.mapper.protect(address, access)
                         : blocks_.mapper.map(blocks_.tier(on_device), block.slot(on_device), address, access);
  return block.has_tables;
}

bool Mappings::set_block_access(uint32_t index, uint8_t device, uint8_t host) {
  Block& block = blocks_[index];
  if (!block.veiled && !show_access(index, device | host)) return false;
  block.device_access = device;
  block.host_access = host;
  block.told = false;
  return true;
}

bool Mappings::veil(uint64_t address, uint64_t bytes, bool veiled) {
  const std::lock_guard<std::mutex> ranges(ranges_.lock);
  Run run{};
  if (!whole_mappings(address, bytes, &run)) return false;
  const auto guard = lock_without_copies(run);
  for (uint32_t index = run.first; index < run.end(); ++index) {
    Block& block = blocks_[index];
    if (block.veiled == veiled) continue;
    if (!show_access(index, veiled ? uint8_t{0} : block.access())) return false;
    block.veiled = veiled;
  }
  return true;
}

CUresult Mappings::unmap(uint64_t address, uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(ranges_.lock);
  Run run{};
  if (!whole_mappings(address, bytes, &run)) return CUDA_ERROR_INVALID_VALUE;
  {
    const auto guard = lock_without_copies(run);
    for (uint32_t index = run.first; index < run.end(); ++index) {
      Block& block = blocks_[index];
      if (block.has_tables && !blocks_.mapper.unmap(blocks_.address_of(index))) return CUDA_ERROR_OPERATING_SYSTEM;
      block.has_tables = false;
      block.device_access = block.host_access = 0;
    }
    for (uint32_t block = run.first; block < run.end(); ++block) take_slot_away(block);
  }
  for (auto each = mapped_.find(run.first); each != mapped_.end() && each->first < run.end();
       each = mapped_.erase(each)) {
    physical_.unmapped(each->second.handle);
  }
  return CUDA_SUCCESS;
}

CUresult Mappings::set_access(uint64_t address, uint64_t bytes, AccessGrant grant) {
  const std::lock_guard<std::mutex> ranges(ranges_.lock);
  Run run{};
  if (!whole_mappings(address, bytes, &run)) return CUDA_ERROR_INVALID_VALUE;
  const auto guard = lock_without_copies(run);
  const auto nothing_of_the_host = [](const Block& block) { return block.host_slot == 0; };
  if (grant.host != AccessGrant::kUnchanged &&
      std::any_of(&blocks_[run.first], &blocks_[run.first] + run.count, nothing_of_the_host)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto change = [](uint8_t now, uint8_t wanted) { return wanted == AccessGrant::kUnchanged ? now : wanted; };
  for (uint32_t index = run.first; index < run.end(); ++index) {
    const Block& block = blocks_[index];
    const uint8_t device = change(block.device_access, grant.device), host = change(block.host_access, grant.host);
    if (!set_block_access(index, device, host)) return CUDA_ERROR_OPERATING_SYSTEM;
  }
  return CUDA_SUCCESS;
}

// Whoever maps memory read-only wants to know of a write, not to lose it.
Service Mappings::fault(uint32_t index, uint64_t address, bool write) {
  Block& block = blocks_[index];
  const uint8_t visible = block.visible();
  if ((visible & (write ? kWriteAccess : kReadAccess)) != 0) return Service::served;  // another thread was first
  if (visible != 0 && !block.told) {
    block.told = true;
    ++silent_writes_;
    blocks_.events.push(UM_EVENT_SILENT_WRITE, Cause::coherence, address, kBlockBytes, now_ns(), true);
  }
  return Service::asks;
}

Service Mappings::carry_out(uint64_t address, bool write) {
  const uint32_t index = place_of(address).block;
  const SpinGuard guard(blocks_.lock);
  Block& block = blocks_[index];
  if (!write || block.visible() == 0) return block.visible() != 0 ? Service::served : Service::refused;
  if (!blocks_.mapper.protect(blocks_.address_of(index), Mapper::Access::write)) return Service::failed;
  block.device_access |= kWriteAccess;
  return Service::served;
}

}  // namespace um::emulated
