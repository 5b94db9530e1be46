// Data in and out of a device, other than by ops.
#include <cstring>
#include <vector>

#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/error.h"
#include "memory/host_memory.h"
#include "memory/migration.h"

using um::address_of;
using um::Budget;
using um::Error;

namespace {

bool managed(const um::Block& block) { return block.arena->heap->placement.memory == UM_MEMORY_MANAGED; }

// While the driver copies: other threads allocate meanwhile, the allocation is the caller's to keep, and a block that
// may leave is pinned.
class Held {
 public:
  Held(um::Swapper* swapper, um::Swapped* block, std::unique_lock<std::mutex>& lock)
      : swapper_(swapper), block_(block), lock_(lock) {
    lock_.unlock();
  }
  ~Held() {
    lock_.lock();
    if (block_ != nullptr) swapper_->unpin(block_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  um::Swapper* swapper_;
  um::Swapped* block_;
  std::unique_lock<std::mutex>& lock_;
};

// Bytes of ours in place of the host's: they may have to come first, which nobody can do while the device is busy with
// this copy.
template <class Copy>
bool through_host(const void* host, uint64_t bytes, const Copy& copy) {
  constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
  if (!um_device::owns(host)) return false;
  std::vector<char> piece(std::min(bytes, kPieceBytes));
  for (uint64_t done = 0; done < bytes; done += piece.size())
    copy(piece.data(), done, std::min<uint64_t>(piece.size(), bytes - done));
  return true;
}

}  // namespace

// On the device, and pinned.
void um_device::hold(um::Swapped* block, bool write) {
  swapper_->pin(block);
  const um::Swapper::Use use{block, write};
  try {
    swapper_->acquire(&use, 1, nullptr);
  } catch (...) {
    swapper_->unpin(block);
    throw;
  }
}

// A GPU's kernels run in streams of which the legacy one, where the copies below are, knows nothing. The emulated
// device's have ended.
void um_device::finish_kernels(um::Wait name, const std::string& doing) const {
  if (backend_.hooks == nullptr && !um::left_out(name)) backend_.check(backend_.call().ctx_synchronize(), doing);
}

void um_device::copy_from_host(void* device_address, const void* host, uint64_t bytes) {
  if (bytes == 0) return;
  if (through_host(host, bytes, [&](char* piece, uint64_t at, uint64_t piece_bytes) {
        std::memcpy(piece, static_cast<const char*>(host) + at, piece_bytes);
        copy_from_host(static_cast<char*>(device_address) + at, piece, piece_bytes);
      }))
    return;
  Found found = find_range(device_address, bytes);
  um_device& device = *found.device;
  if (managed(*found.block)) {
    device.keep_budget([&](Budget& budget) { budget.use(address_of(device_address), bytes, Budget::Use::write); });
  }
  device.record_copy(UM_RECORDED_HOST_WRITE, *found.block, device_address, bytes);
  const um::CurrentContext current(device.backend_);
  device.backend_.check(current.result(), "making the device's context current");
  um::Swapped* const swapped = found.block->swapped;
  if (swapped != nullptr) {
    const uint64_t offset = address_of(device_address) - found.block->address;
    if (device.swapper_->write(swapped, offset, host, bytes)) return;
    device.hold(swapped, true);
  }
  {
    const Held held(device.swapper_.get(), swapped, found.lock);
    const um::driver::Table& call = device.backend_.call();
    const std::string doing = "copying " + std::to_string(bytes) + " bytes to the device";
    device.finish_kernels(um::Wait::host_write_after_kernels, doing);
    device.backend_.check(call.memcpy_htod_async(address_of(device_address), host, bytes, nullptr), doing);
    if (!um::left_out(um::Wait::host_write_done)) device.backend_.check(call.stream_synchronize(nullptr), doing);
  }
  device.sample_residency();
}

// Whoever got an address may use it from any stream.
void um_device::stand_by(um::Swapped* block) {
  try {
    swapper_->stand_by(block);
  } catch (...) {
    swapper_->unpin(block);
    throw;
  }
}

void um_device::copy_to_host(void* host, const void* device_address, uint64_t bytes) {
  if (bytes == 0) return;
  if (through_host(host, bytes, [&](char* piece, uint64_t at, uint64_t piece_bytes) {
        copy_to_host(piece, static_cast<const char*>(device_address) + at, piece_bytes);
        std::memcpy(static_cast<char*>(host) + at, piece, piece_bytes);
      }))
    return;
  Found found = find_range(device_address, bytes);
  um_device& device = *found.device;
  device.record_copy(UM_RECORDED_HOST_READ, *found.block, device_address, bytes);
  const um::CurrentContext current(device.backend_);
  device.backend_.check(current.result(), "making the device's context current");
  um::Swapped* const swapped = found.block->swapped;
  if (swapped != nullptr) {
    if (device.swapper_->read(swapped, address_of(device_address) - found.block->address, host, bytes)) return;
    device.hold(swapped, false);
  }
  const Held held(device.swapper_.get(), swapped, found.lock);
  const um::driver::Table& call = device.backend_.call();
  const std::string doing = "copying " + std::to_string(bytes) + " bytes from the device";
  device.finish_kernels(um::Wait::host_read_after_kernels, doing);
  device.backend_.check(call.memcpy_dtoh_async(host, address_of(device_address), bytes, nullptr), doing);
  if (!um::left_out(um::Wait::host_read_done)) device.backend_.check(call.stream_synchronize(nullptr), doing);
}

void um_device::prefetch(const void* address, uint64_t bytes, bool to_host, void* stream) {
  if (bytes == 0) return;
  const Found found = find_range(address, bytes);
  um_device& device = *found.device;
  if (um::Swapped* const swapped = found.block->swapped) {
    const um::CurrentContext current(device.backend_);
    device.backend_.check(current.result(), "making the device's context current");
    static_cast<void>(to_host ? device.swapper_->swap_out(swapped) : device.swapper_->swap_in(swapped));
    return;
  }
  if (found.block->arena->heap->placement.memory == UM_MEMORY_CHUNKED) return;  // a small one stays where it is
  if (!managed(*found.block))
    throw Error(UM_UNSUPPORTED, "plain device memory stays where it is: only managed memory moves");
  if (const char* reason = device.backend_.why_no_migration()) throw Error(UM_UNSUPPORTED, reason);
  if (to_host && found.block->record.exports > 0) {
    throw Error(UM_BAD_STATE, "the allocation is exported, so it stays on the device until the export is released");
  }
  const Budget::Use use = to_host ? Budget::Use::to_host : Budget::Use::to_device;
  device.keep_budget([&](Budget& budget) { budget.use(address_of(address), bytes, use); });
  const um::CurrentContext current(device.backend_);
  device.backend_.check(current.result(), "making the device's context current");
  um::prefetch(device.backend_, address_of(address), bytes, to_host, static_cast<um::driver::CUstream>(stream));
  device.sample_residency();
}

void um_device::export_address(const void* address) {
  const Found found = find_range(address, 0);
  um_device& device = *found.device;
  if (device.backend_.hooks == nullptr && found.block->arena->heap->placement.memory != UM_MEMORY_CHUNKED)
    throw Error(UM_UNSUPPORTED, "only chunked memory has exports on CUDA: all other stays accessible there");
  um::Record& record = found.block->record;
  if (record.exports == 0 && managed(*found.block)) {
    const uint64_t start = found.block->address;
    bool in_budget = false;
    try {
      device.keep_budget([&](Budget& budget) {
        budget.pin(start, record.bytes);
        in_budget = true;
      });
    } catch (...) {
      if (in_budget) device.budget_->unpin(start, record.bytes);
      throw;
    }
    if (!device.backend_.hooks->pin(device.backend_.ordinal, start, record.bytes)) {
      if (in_budget) device.budget_->unpin(start, record.bytes);
      throw Error(UM_OUT_OF_DEVICE_MEMORY,
                  "an address of this tensor is to leave the device, which needs all of its " +
                      um::in_words(record.bytes) +
                      " resident at once: with what is exported already that does not fit the capacity of " +
                      um::in_words(device.backend_.total_bytes) + "; copy it out instead, or give back other exports");
    }
    device.sample_residency();
  }
  if (record.exports == 0 && found.block->swapped != nullptr) {
    const um::CurrentContext current(device.backend_);
    device.backend_.check(current.result(), "making the device's context current");
    device.hold(found.block->swapped, true);
    device.stand_by(found.block->swapped);
    found.block->swapped->exported = true;
  }
  ++record.exports;
}

void um_device::release_export(const void* address) {
  const Found found = find_range(address, 0);
  um_device& device = *found.device;
  um::Record& record = found.block->record;
  if (record.exports == 0) throw Error(UM_BAD_STATE, "the allocation has no export to release");
  if (--record.exports == 0 && found.block->swapped != nullptr) device.swapper_->unpin(found.block->swapped);
  if (record.exports > 0 || !managed(*found.block)) return;
  device.backend_.hooks->unpin(device.backend_.ordinal, found.block->address, record.bytes);
  if (device.budget_ != nullptr) device.budget_->unpin(found.block->address, record.bytes);
}
