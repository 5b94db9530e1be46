#include "memory/driver_arenas.h"

#include <algorithm>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"
#include "memory/managed_cap.h"
#include "memory/migration.h"

namespace um {

using driver::CUDA_ERROR_OUT_OF_MEMORY;
using driver::CUDA_SUCCESS;
using driver::CUdeviceptr;
using driver::CUresult;

static_assert(UM_ROLE_COUNT <= driver::kResidencyTags);

ArenaSource::Range DriverArenas::acquire(uint64_t least_bytes, uint64_t wanted_bytes) {
  const RequiredContext current(backend_);
  return_leftovers();
  const bool managed = placement_.memory == UM_MEMORY_MANAGED;
  wanted_bytes = managed ? affordable(least_bytes, wanted_bytes) : within_limit(least_bytes, wanted_bytes);
  uint64_t address = allocate(wanted_bytes);
  if (address == 0 && wanted_bytes > least_bytes) address = allocate(wanted_bytes = least_bytes);
  if (address == 0) {
    throw Error(managed ? UM_OUT_OF_HOST_MEMORY : UM_OUT_OF_DEVICE_MEMORY,
                "the driver has no " + in_words(least_bytes) + " of " + (managed ? "managed" : "device") + " memory");
  }
  if (counts()) managed_cap::held_bytes += wanted_bytes;
  backend_.hooks->tag(backend_.ordinal, address, wanted_bytes, placement_.role);
  driver::CUmem_advise advice{};
  const bool advised = driver_advice(static_cast<um_advice>(placement_.advice), &advice);
  if (managed && advised && backend_.why_no_migration() == nullptr) {
    leftovers_.reserve(leftovers_.size() + 1);
    const OnError undo([&] {
      if (!release({address, wanted_bytes})) leftovers_.push_back({address, wanted_bytes});
    });
    advise(backend_, address, wanted_bytes, advice);
  }
  return {address, wanted_bytes};
}

// New arenas get smaller as memory fills up, because no heap can use the rest of another heap's last arena.
uint64_t DriverArenas::within_limit(uint64_t least_bytes, uint64_t wanted_bytes) const {
  constexpr uint64_t kMostPart = 8;
  const uint64_t left_bytes = plain_.left_bytes(), part_bytes = left_bytes / kMostPart / kBlockBytes * kBlockBytes;
  if (least_bytes <= left_bytes) return std::clamp(part_bytes, least_bytes, wanted_bytes);
  throw Error(UM_OUT_OF_DEVICE_MEMORY, in_words(least_bytes) + " more of plain memory is beyond the limit of " +
                                           in_words(plain_.most_bytes) + ", of which " +
                                           in_words(plain_.reserved_bytes) + " are taken");
}

// A managed request for more than the machine has would succeed at once, and the host would stall later.
uint64_t DriverArenas::affordable(uint64_t least_bytes, uint64_t wanted_bytes) const {
  size_t free_bytes = 0, total_bytes = 0;
  backend_.check(backend_.call().mem_get_info(&free_bytes, &total_bytes), "asking for free device memory");
  uint64_t host_bytes = backend_.available_host_bytes();
  if (backend_.integrated == 1) {  // host and device report the same memory
    host_bytes = std::max<uint64_t>(host_bytes, free_bytes);
    free_bytes = 0;
  }
  if (least_bytes > host_bytes + free_bytes) {
    throw Error(UM_OUT_OF_HOST_MEMORY,
                in_words(least_bytes) +
                    " of managed memory is more than this machine can hold: " + in_words(host_bytes) +
                    " of host memory are available and " + in_words(free_bytes) + " free on the device");
  }
  uint64_t most_bytes = host_bytes + free_bytes;
  if (counts()) most_bytes = std::min(most_bytes, managed_cap::left(backend_.free_at_opening_bytes));
  if (least_bytes > most_bytes) {
    throw Error(UM_OUT_OF_HOST_MEMORY,
                in_words(least_bytes) + " of managed memory is more than this process may still have, which is " +
                    in_words(most_bytes) +
                    ": a machine that pages more than it holds stalls. Make the model or the batch smaller, or give "
                    "most_managed a larger number, up to what host and device had free at the beginning");
  }
  return wanted_bytes > most_bytes ? least_bytes : wanted_bytes;
}

// Returns 0 if the driver is out of memory. Throws um::Error on any other failure.
uint64_t DriverArenas::allocate(uint64_t bytes) {
  CUdeviceptr raw = 0;
  const char* doing = "allocating memory from the driver";
  CUresult result = allocate_raw(bytes, &raw);
  if (result == CUDA_SUCCESS &&
      raw % kBlockBytes != 0) {  // the driver does not promise an alignment, so this takes enough to align
    if (backend_.call().mem_free(raw) != CUDA_SUCCESS) leftovers_.push_back({raw, 0});
    result = allocate_raw(bytes + kBlockBytes, &raw);
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return 0;
  backend_.check(result, doing);
  const uint64_t address = (raw + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  if (address != raw) raw_.emplace(address, raw);
  return address;
}

CUresult DriverArenas::allocate_raw(uint64_t bytes, CUdeviceptr* out) const {
  return placement_.memory == UM_MEMORY_MANAGED
             ? backend_.call().mem_alloc_managed(out, bytes, driver::CU_MEM_ATTACH_GLOBAL)
             : backend_.call().mem_alloc(out, bytes);
}

bool DriverArenas::release(Range range) noexcept {
  const CurrentContext current(backend_);
  if (current.result() != CUDA_SUCCESS) return false;
  const auto shifted = raw_.find(range.address);
  const CUdeviceptr raw = shifted == raw_.end() ? range.address : shifted->second;
  backend_.helper->finish();  // a prefetch into the range may be queued
  if (backend_.call().mem_free(raw) != CUDA_SUCCESS) return false;
  if (shifted != raw_.end()) raw_.erase(shifted);
  if (counts()) managed_cap::held_bytes -= range.bytes;
  return true;
}

bool DriverArenas::return_leftovers() noexcept {
  const auto returned = [&](Range range) { return release(range); };
  leftovers_.erase(std::remove_if(leftovers_.begin(), leftovers_.end(), returned), leftovers_.end());
  return leftovers_.empty();
}

}  // namespace um
