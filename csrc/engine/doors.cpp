// Data in and out of a device, other than by ops.
#include <vector>

#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/address_map.h"
#include "memory/migration.h"

using um::address_of;
using um::Budget;
using um::Error;
using um::managed;

namespace {

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

// Bytes of ours in place of the host's: they may be swapped out, so they are copied as bytes of ours are.
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
void um_device::hold(um::Swapped* block, bool write, um::driver::CUstream stream) {
  swapper_->pin(block);
  const um::OnError undo([&] { swapper_->unpin(block); });
  const um::Swapper::Use use{block, write};
  swapper_->acquire(&use, 1, stream);
}

// A GPU's kernels run in streams of which the legacy one, where the copies below are, knows nothing. The emulated
// device's have ended.
void um_device::finish_kernels(um::Wait name, const std::string& doing) const {
  if (backend_.hooks == nullptr && !um::left_out(name)) backend_.check(backend_.call().ctx_synchronize(), doing);
}

void um_device::copy_from_host(void* device_address, const void* host, uint64_t bytes) {
  if (bytes == 0) return;
  if (through_host(host, bytes, [&](char* piece, uint64_t at, uint64_t piece_bytes) {
        copy_to_host(piece, static_cast<const char*>(host) + at, piece_bytes);
        copy_from_host(static_cast<char*>(device_address) + at, piece, piece_bytes);
      }))
    return;
  Found found = find_range(device_address, bytes);
  um_device& device = *found.device;
  if (managed(*found.block)) {
    device.keep_budget([&](Budget& budget) { budget.use(address_of(device_address), bytes, Budget::Use::write); });
  }
  device.record_copy(UM_RECORDED_HOST_WRITE, *found.block, device_address, bytes);
  const um::RequiredContext current(device.backend_);
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

void um_device::copy_to_host(void* host, const void* device_address, uint64_t bytes) {
  if (bytes == 0) return;
  if (through_host(host, bytes, [&](char* piece, uint64_t at, uint64_t piece_bytes) {
        copy_to_host(piece, static_cast<const char*>(device_address) + at, piece_bytes);
        copy_from_host(static_cast<char*>(host) + at, piece, piece_bytes);
      }))
    return;
  Found found = find_range(device_address, bytes);
  um_device& device = *found.device;
  device.record_copy(UM_RECORDED_HOST_READ, *found.block, device_address, bytes);
  const um::RequiredContext current(device.backend_);
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
    const um::RequiredContext current(device.backend_);
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
  const um::RequiredContext current(device.backend_);
  um::prefetch(device.backend_, address_of(address), bytes, to_host, static_cast<um::driver::CUstream>(stream));
  device.sample_residency();
}
