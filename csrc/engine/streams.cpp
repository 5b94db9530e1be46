#include "engine/streams.h"

#include <exception>
#include <utility>

#include "memory/migration.h"

namespace um {

using driver::CUstream;

void Streams::wait(CUstream waiting, CUstream awaited) {
  const RequiredContext current(base_.backend);
  order(waiting, awaited, Wait::stream_order);
}

// A destroyed stream takes no event, and its work may still run, so record() has waited for the whole device.
void Streams::order(CUstream waiting, CUstream awaited, Wait name) {
  if (left_out(name)) return;
  Fences& fences = *base_.fences;
  const HeldFence given(fences, fences.record(&awaited, 1));
  fences.order(waiting, given, name);
}

CUstream Streams::side() {
  if (side_ == nullptr) {
    base_.backend.check(base_.backend.call().stream_create(&side_, driver::CU_STREAM_NON_BLOCKING),
                        "making a stream for prefetches and discards");
  }
  return side_;
}

// Discards whole pages before they are reused: an eviction would otherwise copy dead contents.
void Streams::discard(const Block& block) noexcept {
  const uint64_t first = (block.address + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const uint64_t end = block.end() / kBlockBytes * kBlockBytes;
  if (first >= end || !base_.backend.discards || !base_.backend.has(driver::Function::mem_discard_batch_async)) return;
  // The next user of the memory waits for the stream that freed it. The freeing stream is not known here, and the order
  // below is right only for the legacy stream.
  if (others_) return;
  try {
    const CurrentContext current(base_.backend);
    const CUstream stream = side();  // the driver accepts no discards in the legacy stream
    order(stream, nullptr, Wait::discard_after_use);
    um::discard(base_.backend, first, end - first, stream);
    order(nullptr, stream, Wait::discard_before_reuse);
  } catch (const std::exception&) {
    return;  // without the discard, evictions are slower
  }
}

void Streams::close() noexcept {
  if (side_ != nullptr) static_cast<void>(base_.backend.call().stream_destroy(std::exchange(side_, nullptr)));
}

}  // namespace um
