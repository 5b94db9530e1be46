// Physical memory that has a handle: slots of a tier, taken from managed memory where they are the device's.
#include <utility>

#include "devices/emulated/space.h"

namespace um::emulated {

using namespace um::driver;  // NOLINT(google-build-using-namespace): the codes of CUresult

bool Space::take_slot(Handle& handle) {
  Moment over;
  const Guard guard(lock_);
  bool done = true;
  if (handle.on_device) {
    link_.begin(now_ns());
    if (!plain_.take([&](const Outcome& outcome) { return evict(outcome); }, done)) return false;
    over.ns = link_.at_ns();
  } else if (managed_blocks_ + host_handle_slots_ == host_tier_.slots()) {
    return false;
  }
  Tier& tier = handle.on_device ? device_tier_ : host_tier_;
  const uint32_t slot = done ? tier.take() : Tier::kNoSlot;
  if (slot == Tier::kNoSlot) {  // on the device alone: the host's slots are counted
    plain_.give();
    return false;
  }
  if (handle.on_device) resident_.add(ResidentBlocks::kUntagged);
  host_handle_slots_ += !handle.on_device;
  handle.slots.push_back(slot);
  tier.populate(slot);
  return true;
}

void Space::give_slots(const Handle& handle) {
  const Guard guard(lock_);
  for (const uint32_t slot : handle.slots) {
    (handle.on_device ? device_tier_ : host_tier_).give(slot);
    if (!handle.on_device) continue;
    plain_.give();
    resident_.subtract(ResidentBlocks::kUntagged);
  }
  if (!handle.on_device) host_handle_slots_ -= handle.slots.size();
  if (handle.on_device) plain_.withhold_remnant([&](const Outcome& outcome) { return evict(outcome); });
}

CUresult Space::create(uint64_t bytes, bool on_device, CUmemGenericAllocationHandle* handle) {
  if (bytes == 0 || bytes % kBlockBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const uint64_t count = bytes / kBlockBytes;
  if (count > (on_device ? device_tier_ : host_tier_).slots()) return CUDA_ERROR_OUT_OF_MEMORY;
  Handle made;
  made.on_device = on_device;
  made.slots.reserve(count);
  if (on_device) {
    const Guard guard(lock_);
    plain_.return_remnant();
  }
  bool complete = true;
  while (complete && made.slots.size() < count) complete = take_slot(made);
  if (!complete) {
    give_slots(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (on_device) {
    const Guard guard(lock_);
    plain_.withhold_remnant([&](const Outcome& outcome) { return evict(outcome); });
  }
  *handle = ++last_handle_;
  handles_.emplace(last_handle_, std::move(made));
  return CUDA_SUCCESS;
}

CUresult Space::release(uint64_t handle) {
  const std::lock_guard<std::mutex> ranges(ranges_lock_);
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.released) return CUDA_ERROR_INVALID_VALUE;
  found->second.released = true;
  if (found->second.mappings > 0) return CUDA_SUCCESS;
  give_slots(found->second);
  handles_.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace um::emulated
