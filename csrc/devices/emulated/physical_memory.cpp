#include "devices/emulated/physical_memory.h"

#include <utility>

namespace um::emulated {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the codes of CUresult

// A slot of the host is there: it was promised.
bool PhysicalMemory::take_slot(Handle& handle) {
  Moment over(link_);
  const SpinGuard guard(blocks_.lock);
  if (handle.on_device) {
    link_.begin(link_.now_ns());
    if (!migrator_.take_chunk()) return false;
    over.ns = link_.at_ns();
  }
  Tier& tier = blocks_.tier(handle.on_device);
  const uint32_t slot = tier.take();
  if (slot == Tier::kNoSlot) {
    migrator_.plain.give();
    return false;
  }
  if (handle.on_device) blocks_.resident.add(devices::ResidentBlocks::kUntagged);
  handle.slots.push_back(slot);
  if (!blocks_.hollow) tier.populate(slot);
  return true;
}

void PhysicalMemory::give_slots(const Handle& handle) {
  const SpinGuard guard(blocks_.lock);
  for (const uint32_t slot : handle.slots) {
    blocks_.tier(handle.on_device).give(slot);
    if (!handle.on_device) continue;
    migrator_.plain.give();
    blocks_.resident.subtract(devices::ResidentBlocks::kUntagged);
  }
  if (handle.on_device) {
    migrator_.withhold_remnant();
  } else {
    ranges_.return_host_slots(handle.slots.size());
  }
}

CUresult PhysicalMemory::create(uint64_t bytes, bool on_device, CUmemGenericAllocationHandle* handle) {
  if (bytes == 0 || bytes % kBlockBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> ranges(ranges_.lock);
  const uint64_t count = bytes / kBlockBytes;
  if (count > blocks_.tier(on_device).slots()) return CUDA_ERROR_OUT_OF_MEMORY;
  Handle made;
  made.on_device = on_device;
  made.slots.reserve(count);
  if (on_device) {
    const SpinGuard guard(blocks_.lock);
    migrator_.plain.return_remnant();
  } else if (!ranges_.promise_host_slots(count)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  bool complete = true;
  while (complete && made.slots.size() < count) complete = take_slot(made);
  if (!complete) {
    give_slots(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (on_device) {
    const SpinGuard guard(blocks_.lock);
    migrator_.withhold_remnant();
  }
  *handle = ++last_handle_;
  handles_.emplace(last_handle_, std::move(made));
  return CUDA_SUCCESS;
}

CUresult PhysicalMemory::release(uint64_t handle) {
  const std::lock_guard<std::mutex> ranges(ranges_.lock);
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.released) return CUDA_ERROR_INVALID_VALUE;
  found->second.released = true;
  drop_unused(found);
  return CUDA_SUCCESS;
}

Handle* PhysicalMemory::find(uint64_t handle) {
  const auto found = handles_.find(handle);
  return found == handles_.end() || found->second.released ? nullptr : &found->second;
}

void PhysicalMemory::unmapped(uint64_t handle) {
  const auto found = handles_.find(handle);
  --found->second.mappings;
  drop_unused(found);
}

void PhysicalMemory::drop_unused(Handles::iterator handle) {
  if (!handle->second.released || handle->second.mappings > 0) return;
  give_slots(handle->second);
  handles_.erase(handle);
}

}  // namespace um::emulated
