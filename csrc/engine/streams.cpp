#include "engine/streams.h"

#include <exception>
#include <utility>

#include "engine/device.h"
#include "memory/migration.h"

namespace um {

using driver::CUstream;

void Streams::uses(const void* address, void* stream) {
  const um_device::Found found = um_device::find_range(address, 0);
  const auto user = static_cast<CUstream>(stream);
  um_device& device = *found.device;
  device.streams.note(user);
  if (found.block->arena->heap->placement.memory != UM_MEMORY_CHUNKED || left_out(Wait::stream_lent)) return;
  const RequiredContext current(device.backend);
  if (Movable* const movable = notes(*found.block).movable) {
    device.swapping.mover().transfers.lend(user, movable);
  } else {
    device.swapping.mover().waits.streams.lend(user);  // the arenas of small blocks wait for all known streams
  }
}

void Streams::wait(CUstream waiting, CUstream awaited) {
  const RequiredContext current(device_.backend);
  order(waiting, awaited, Wait::stream_order);
}

// A destroyed stream takes no event, and its work may still run, so record() has waited for the whole device.
void Streams::order(CUstream waiting, CUstream awaited, Wait name) {
  if (left_out(name)) return;
  Fences& fences = *device_.fences;
  const HeldFence given(fences, fences.record(&awaited, 1));
  fences.order(waiting, given, name);
}

CUstream Streams::side() {
  if (side_ == nullptr) {
    device_.backend.check(device_.backend.call().stream_create(&side_, driver::CU_STREAM_NON_BLOCKING),
                          "making a stream for prefetches and discards");
  }
  return side_;
}

// Discards whole pages before they are reused: an eviction would otherwise copy dead contents.
void Streams::discard(const Block& block) noexcept {
  const Backend& backend = device_.backend;
  const uint64_t first = (block.address + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const uint64_t end = block.end() / kBlockBytes * kBlockBytes;
  if (first >= end || !backend.discards || !backend.has(driver::Function::mem_discard_batch_async)) return;
  // The next user of the memory waits for the stream that freed it. The freeing stream is not known here, and the order
  // below is right only for the legacy stream.
  if (others_) return;
  try {
    const CurrentContext current(backend);
    const CUstream stream = side();  // the driver accepts no discards in the legacy stream
    order(stream, nullptr, Wait::discard_after_use);
    um::discard(backend, first, end - first, stream);
    order(nullptr, stream, Wait::discard_before_reuse);
  } catch (const std::exception&) {
    return;  // without the discard, evictions are slower
  }
}

void Streams::close() noexcept {
  if (side_ != nullptr) static_cast<void>(device_.backend.call().stream_destroy(std::exchange(side_, nullptr)));
}

}  // namespace um
