#include "engine/doors.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "engine/device.h"
#include "memory/address_map.h"

namespace um {
namespace {

// Releases the lock while the driver copies, so that other threads can allocate. The caller keeps the allocation alive,
// and has pinned a block that could be evicted.
class Held {
 public:
  explicit Held(um_device::Found& found) : found_(found) { found_.lock.unlock(); }
  ~Held() {
    found_.lock.lock();
    if (notes(*found_.block).movable != nullptr) --notes(*found_.block).movable->pins;
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  um_device::Found& found_;
};

// Copies from memory of a device in place of host memory. It may be swapped out, so it is copied through a host buffer.
void through_host(void* to, const void* from, uint64_t bytes) {
  constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
  std::vector<char> piece(std::min(bytes, kPieceBytes));
  for (uint64_t done = 0; done < bytes; done += piece.size()) {
    const uint64_t piece_bytes = std::min<uint64_t>(piece.size(), bytes - done);
    copy_to_host(piece.data(), static_cast<const char*>(from) + done, piece_bytes);
    copy_from_host(static_cast<char*>(to) + done, piece.data(), piece_bytes);
  }
}

// Copies between an allocation and memory of the host.
void copy(void* device_address, void* host, uint64_t bytes, bool to_device) {
  um_device::Found found = um_device::find_range(device_address, bytes);
  um_device& device = *found.device;
  const Backend& backend = device.backend;
  const uint64_t at = address_of(device_address);
  if (to_device && managed(*found.block)) device.budget.use(at, bytes, Budget::Use::write);
  device.recording.copied(to_device ? UM_RECORDED_HOST_WRITE : UM_RECORDED_HOST_READ, *found.block, at, bytes);
  const RequiredContext current(backend);
  if (Movable* const movable = notes(*found.block).movable) {
    if (device.swapping.mover().waits.on_host(movable, to_device)) {
      std::memcpy(to_device ? device_address : host, to_device ? host : device_address, bytes);
      return;
    }
    device.swapping.pin(movable, to_device);
  }
  {
    const Held held(found);
    const std::string doing =
        "copying " + std::to_string(bytes) + " bytes " + (to_device ? "to" : "from") + " the device";
    backend.finish_kernels(to_device ? Wait::host_write_after_kernels : Wait::host_read_after_kernels, doing);
    backend.check(to_device ? backend.call().memcpy_htod_async(at, host, bytes, nullptr)
                            : backend.call().memcpy_dtoh_async(host, at, bytes, nullptr),
                  doing);
    if (!left_out(to_device ? Wait::host_write_done : Wait::host_read_done))
      backend.check(backend.call().stream_synchronize(nullptr), doing);
  }
  if (to_device) device.accounts.sample_residency();
}

}  // namespace

void copy_from_host(void* device_address, const void* host, uint64_t bytes) {
  if (um_device::owns(host)) return through_host(device_address, host, bytes);
  if (bytes > 0) copy(device_address, const_cast<void*>(host), bytes, true);
}

void copy_to_host(void* host, const void* device_address, uint64_t bytes) {
  if (um_device::owns(host)) return through_host(host, device_address, bytes);
  if (bytes > 0) copy(const_cast<void*>(device_address), host, bytes, false);
}

void lend(const void* address, void* stream) {
  const um_device::Found found = um_device::find_range(address, 0);
  const auto user = static_cast<driver::CUstream>(stream);
  found.device->streams.note(user);
  found.device->kind_of(*found.block).lend(found.block, user);
}

void prefetch(const void* address, uint64_t bytes, bool to_host, void* stream) {
  if (bytes == 0) return;
  const um_device::Found found = um_device::find_range(address, bytes);
  MemoryKind& kind = found.device->kind_of(*found.block);
  kind.prefetch(found.block, address_of(address), bytes, to_host, static_cast<driver::CUstream>(stream));
}

}  // namespace um
