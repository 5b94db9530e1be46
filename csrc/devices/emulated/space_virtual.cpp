// Reserved ranges and the physical memory under them. Which slot lies under which block is settled by `map`. A block
// gets page tables of its own when somebody may access it first, and keeps them until it is unmapped: who may do what
// there changes their protection, so that no page is faulted in twice however often its contents move.
#include <algorithm>

#include "devices/emulated/space.h"
#include "umadvise_waits.h"

namespace um::emulated {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the codes of CUresult

bool Space::whole_blocks(uint64_t address, uint64_t bytes, Run* out) const {
  const uint64_t begin = address_of(0);
  if (bytes == 0 || bytes % kBlockBytes != 0 || bytes > kSpanBytes || address < begin) return false;
  const uint64_t offset = address - begin;
  if (offset % kBlockBytes != 0 || offset > kSpanBytes - bytes) return false;
  *out = {static_cast<uint32_t>(offset / kBlockBytes), static_cast<uint32_t>(bytes / kBlockBytes)};
  return true;
}

// ---- address space -----------------------------------------------------------------------------------------

CUresult Space::reserve(uint64_t bytes, CUdeviceptr* address) {
  if (bytes == 0 || bytes % kBlockBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kSpanBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const auto count = static_cast<uint32_t>(bytes / kBlockBytes);
  const uint32_t first = ranges_.find_room(count);
  if (first == Model::kNone) return CUDA_ERROR_OUT_OF_MEMORY;
  ranges_.take(first, count);
  const Guard guard(lock_);
  for (uint32_t block = first; block < first + count; ++block) {
    blocks_[block].kind = Kind::reserved;
    blocks_[block].tag = ResidentBlocks::kUntagged;
    blocks_[block].reservation = first;
  }
  *address = address_of(first);
  return CUDA_SUCCESS;
}

CUresult Space::free_reserved(uint64_t address, uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  Run run{};
  if (!whole_blocks(address, bytes, &run) || ranges_.count_at(run.first) != run.count) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = mappings_.lower_bound(run.first);
  if (mapped != mappings_.end() && mapped->first < run.first + run.count) return CUDA_ERROR_INVALID_VALUE;
  const Guard guard(lock_);
  if (blocks_[run.first].kind != Kind::reserved) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t block = run.first; block < run.first + run.count; ++block) blocks_[block].kind = Kind::free;
  ranges_.give(run.first);
  return CUDA_SUCCESS;
}

// ---- mappings ----------------------------------------------------------------------------------------------

// The slot counts for the device where it is mapped, under that block's tag.
void Space::put_slot(uint32_t index, const Handle& handle, uint32_t slot) {
  Block& block = blocks_[index];
  (handle.on_device ? block.device_slot : block.host_slot) = slot + 1;
  if (!handle.on_device) return;
  resident_.retag(ResidentBlocks::kUntagged, block.tag);
  push(Change::arrived, block);
}

void Space::take_slot_away(uint32_t index) {
  Block& block = blocks_[index];
  if (block.device_slot != 0) {
    resident_.retag(block.tag, ResidentBlocks::kUntagged);
    push(Change::left, block);
  }
  block.device_slot = block.host_slot = 0;
  block.veiled = block.has_tables = false;
}

CUresult Space::map(uint64_t address, uint64_t bytes, uint64_t handle) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  Run run{};
  const auto found = handles_.find(handle);
  if (!whole_blocks(address, bytes, &run) || found == handles_.end() || found->second.released ||
      run.count > found->second.slots.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Guard guard(lock_);
  const uint32_t reservation = blocks_[run.first].reservation;
  for (uint32_t index = run.first; index < run.first + run.count; ++index) {
    const Block& block = blocks_[index];
    if (block.kind != Kind::reserved || block.reservation != reservation || block.device_slot != 0 ||
        block.host_slot != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (uint32_t i = 0; i < run.count; ++i) put_slot(run.first + i, found->second, found->second.slots[i]);
  mappings_.emplace(run.first, MappedRange{run.count, handle});
  ++found->second.mappings;
  return CUDA_SUCCESS;
}

bool Space::whole_mappings(Run run) const {
  uint32_t block = run.first;
  const uint32_t end = run.first + run.count;
  while (block < end) {
    const auto found = mappings_.find(block);
    if (found == mappings_.end()) return false;
    block += found->second.count;
  }
  return block == end;
}

// A copy uses the page tables that are about to change.
std::unique_lock<SpinLock> Space::lock_without_copies(Run run) {
  delays.wait();
  for (;;) {
    std::unique_lock<SpinLock> guard(lock_);
    const Block* first = &blocks_[run.first];
    const bool idle =
        std::all_of(first, first + run.count, [](const Block& block) { return block.copies.load() == 0; });
    if (idle || left_out(Wait::emulated_copies)) return guard;
    guard.unlock();
    sched_yield();
  }
}

template <class Each>
bool Space::each_block(Run run, const Each& each) {
  for (uint32_t block = run.first; block < run.first + run.count; ++block) {
    if (!each(block)) return false;
  }
  return true;
}

bool Space::show_access(uint32_t index, uint8_t wanted) {
  Block& block = blocks_[index];
  if (wanted == block.visible()) return true;
  const auto access = (wanted & kWriteAccess) != 0  ? Mapper::Access::write
                      : (wanted & kReadAccess) != 0 ? Mapper::Access::read
                                                    : Mapper::Access::none;
  if (block.has_tables) return mapper_.protect(address_of(index), access);
  const bool on_device = block.device_slot != 0;
  const uint32_t slot = (on_device ? block.device_slot : block.host_slot) - 1;
  block.has_tables = mapper_.map(on_device ? device_tier_ : host_tier_, slot, address_of(index), access);
  return block.has_tables;
}

bool Space::set_block_access(uint32_t index, uint8_t device, uint8_t host) {
  Block& block = blocks_[index];
  if (!block.veiled && !show_access(index, device | host)) return false;
  block.device_access = device;
  block.host_access = host;
  block.told = false;
  return true;
}

bool Space::veil(uint64_t address, uint64_t bytes, bool veiled) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  Run run{};
  if (!whole_blocks(address, bytes, &run) || !whole_mappings(run)) return false;
  const auto guard = lock_without_copies(run);
  return each_block(run, [&](uint32_t index) {
    Block& block = blocks_[index];
    if (block.veiled == veiled) return true;
    if (!show_access(index, veiled ? uint8_t{0} : block.access())) return false;
    block.veiled = veiled;
    return true;
  });
}

CUresult Space::unmap(uint64_t address, uint64_t bytes) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  Run run{};
  if (!whole_blocks(address, bytes, &run) || !whole_mappings(run)) return CUDA_ERROR_INVALID_VALUE;
  {
    const auto guard = lock_without_copies(run);
    const bool done = each_block(run, [&](uint32_t index) {
      Block& block = blocks_[index];
      if (block.has_tables && !mapper_.unmap(address_of(index))) return false;
      block.has_tables = false;
      block.device_access = block.host_access = 0;
      return true;
    });
    if (!done) return CUDA_ERROR_OPERATING_SYSTEM;
    for (uint32_t block = run.first; block < run.first + run.count; ++block) take_slot_away(block);
  }
  for (auto each = mappings_.find(run.first); each != mappings_.end() && each->first < run.first + run.count;) {
    const auto handle = handles_.find(each->second.handle);
    each = mappings_.erase(each);
    if (--handle->second.mappings > 0 || !handle->second.released) continue;
    give_slots(handle->second);
    handles_.erase(handle);
  }
  return CUDA_SUCCESS;
}

CUresult Space::set_access(uint64_t address, uint64_t bytes, AccessGrant grant) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  Run run{};
  if (!whole_blocks(address, bytes, &run) || !whole_mappings(run)) return CUDA_ERROR_INVALID_VALUE;
  const auto guard = lock_without_copies(run);
  const Block* first = &blocks_[run.first];
  if (grant.host != AccessGrant::kUnchanged &&
      std::any_of(first, first + run.count, [](const Block& block) { return block.host_slot == 0; })) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto change = [](uint8_t now, uint8_t wanted) { return wanted == AccessGrant::kUnchanged ? now : wanted; };
  const bool done = each_block(run, [&](uint32_t index) {
    const Block& block = blocks_[index];
    return set_block_access(index, change(block.device_access, grant.device), change(block.host_access, grant.host));
  });
  return done ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

// ---- use ---------------------------------------------------------------------------------------------------

// Whoever maps memory read-only wants to know of a write, not to lose it.
Service Space::ask_about(uint32_t index, uint64_t address, bool write) {
  Block& block = blocks_[index];
  const uint8_t visible = block.visible();
  if ((visible & (write ? kWriteAccess : kReadAccess)) != 0) return Service::served;  // another thread was first
  if (visible != 0 && !block.told) {
    block.told = true;
    ++silent_writes_;
    push(UM_EVENT_SILENT_WRITE, Cause::coherence, address, kBlockBytes, now_ns(), true);
  }
  return Service::asks;
}

Service Space::carry_out(uint64_t address, bool write) {
  const uint32_t index = place_of(address).block;
  const Guard guard(lock_);
  Block& block = blocks_[index];
  if (!write || block.visible() == 0) return block.visible() != 0 ? Service::served : Service::refused;
  if (!mapper_.protect(address_of(index), Mapper::Access::write)) return Service::failed;
  block.device_access |= kWriteAccess;
  return Service::served;
}

}  // namespace um::emulated
