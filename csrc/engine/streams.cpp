// The order between streams.
#include "base/error.h"
#include "base/on_error.h"
#include "engine/device.h"
#include "memory/address_map.h"

using um::driver::CUstream;

void um_device::stream_wait(void* waiting, void* awaited) {
  const Lock lock = lock_alive();
  const um::RequiredContext current(backend_);
  order(static_cast<CUstream>(waiting), static_cast<CUstream>(awaited), um::Wait::stream_order);
}

void um_device::stream_uses(const void* address, void* stream) {
  const Found found = find_range(address, 0);
  um_device& device = *found.device;
  device.note_stream(static_cast<CUstream>(stream));
  if (device.swapper_ == nullptr) return;
  if (um::Swapped* const swapped = found.block->swapped) {
    device.swapper_->lend(static_cast<CUstream>(stream), swapped);
  } else if (found.block->arena->heap->placement.memory == UM_MEMORY_CHUNKED) {
    device.swapper_->lend(static_cast<CUstream>(stream), nullptr);  // small blocks' arenas wait for all that are known
  }
}

// A stream that is gone takes no event, but its work may still run: then the whole device has been waited for.
void um_device::order(CUstream waiting, CUstream awaited, um::Wait name) {
  if (um::left_out(name)) return;
  const um::Fences::Fence given = fences_->record(&awaited, 1);
  const um::OnError undo([&] { fences_->release(given); });
  fences_->order(waiting, given, name);
  fences_->release(given);
}

CUstream um_device::side_stream() {
  if (side_stream_ == nullptr) {
    backend_.check(backend_.call().stream_create(&side_stream_, um::driver::CU_STREAM_NON_BLOCKING),
                   "making a stream for prefetches and discards");
  }
  return side_stream_;
}
