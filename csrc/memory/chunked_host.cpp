// What of blocks is in the host's memory: copies, contents, and mappings at the blocks' addresses.
#include <algorithm>
#include <cstring>

#include "base/on_error.h"
#include "memory/chunked_memory.h"

namespace um {

using driver::CUstream;

template <class Copy>
void ChunkedMemory::each_piece(const HostRange& range, uint64_t offset, uint64_t bytes, const Copy& copy) const {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t inside = (offset + done) % chunk_bytes_;
    const uint64_t piece = std::min(chunk_bytes_ - inside, bytes - done);
    copy(range.chunks[(offset + done) / chunk_bytes_]->data + inside, done, piece);
    done += piece;
  }
}

void ChunkedMemory::copy_out(const Block& block, HostRange* to, CUstream stream) const {
  each_piece(*to, 0, block.record.bytes, [&](char* data, uint64_t done, uint64_t piece) {
    backend_.check(backend_.call().memcpy_dtoh_async(data, block.address + done, piece, stream),
                   "copying a chunk to the host");
  });
}

void ChunkedMemory::copy_in(const Block& block, HostRange* from, CUstream stream) const {
  each_piece(*from, 0, block.record.bytes, [&](const char* data, uint64_t done, uint64_t piece) {
    backend_.check(backend_.call().memcpy_htod_async(block.address + done, data, piece, stream),
                   "copying a chunk to the device");
  });
}

void ChunkedMemory::read(const HostRange* from, uint64_t offset, void* to, uint64_t bytes) const {
  each_piece(*from, offset, bytes, [&](const char* data, uint64_t done, uint64_t piece) {
    std::memcpy(static_cast<char*>(to) + done, data, piece);
  });
}

void ChunkedMemory::write(HostRange* to, uint64_t offset, const void* from, uint64_t bytes) const {
  each_piece(*to, offset, bytes, [&](char* data, uint64_t done, uint64_t piece) {
    std::memcpy(data, static_cast<const char*>(from) + done, piece);
  });
}

void ChunkedMemory::map_host(const Block& block, HostRange* range) {
  Slot* slots = slots_.at(block.address);
  const uint64_t count = chunks_of(block);
  const OnError undo([&] { unmap_host(slots, count); });
  for (uint64_t i = 0; i < count; ++i) {
    clear(slots[i]);
    slots_.map(slots[i], range->chunks[i]->handle, SlotState::host);
  }
  slots_.allow(slots, count, Access::write);
}

void ChunkedMemory::unmap_host(const Block& block) noexcept { unmap_host(slots_.at(block.address), chunks_of(block)); }

// What is refused here is unmapped when somebody needs the slot.
void ChunkedMemory::unmap_host(Slot* slots, uint64_t count) noexcept {
  for (Slot* slot = slots; slot != slots + count; ++slot) {
    if (slot->state == SlotState::host) static_cast<void>(slots_.unmap(*slot));
  }
}

}  // namespace um
