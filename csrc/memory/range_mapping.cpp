#include "memory/range_mapping.h"

#include <utility>

#include "base/error.h"
#include "base/on_error.h"
#include "memory/physical.h"
#include "memory/places.h"

namespace um {

void RangeMapping::open(ChunkRange* range, bool ahead) {
  range->room = rooms_.allocate(bytes(*range));
  const OnError undo([&] { rooms_.free(range->room, true); });
  range->address = range->room->address;
  park(range->room);
  if (ahead) {
    range->mapping = backend_.helper->ask([this, range] {
      try {
        map_all(*range);
      } catch (const Error&) {
        range->refused = true;
      }
    });
    mapped_ += range->chunks.size();
  } else {
    map(*range);
  }
}

bool RangeMapping::finish_mapping(ChunkRange* range) noexcept {
  backend_.helper->finish(std::exchange(range->mapping, 0));
  return !range->refused;
}

void RangeMapping::map(const ChunkRange& range) {
  map_all(range);
  mapped_ += range.chunks.size();
}

bool RangeMapping::unmap(ChunkRange* range) noexcept {
  if (finish_mapping(range) && backend_.call().mem_unmap(range->address, bytes(*range)) != driver::CUDA_SUCCESS)
    return false;
  mapped_ -= range->chunks.size();
  return true;
}

bool RangeMapping::close(ChunkRange* range) noexcept {
  if (!unmap(range)) return false;
  rooms_.free(range->room, true);
  return true;
}

void RangeMapping::map_all(const ChunkRange& range) {
  uint64_t at = range.address;
  const OnError undo([&] {
    for (uint64_t done = range.address; done < at; done += chunk_bytes_)
      static_cast<void>(backend_.call().mem_unmap(done, chunk_bytes_));
  });
  for (const Chunk* chunk : range.chunks) {
    backend_.check(backend_.call().mem_map(at, chunk_bytes_, 0, chunk->handle, 0), "mapping a chunk");
    at += chunk_bytes_;
  }
  allow(range, true);
}

void RangeMapping::allow(const ChunkRange& range, bool write) {
  const driver::CUmemAccessDesc access{location_of(backend_), write ? driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                    : driver::CU_MEM_ACCESS_FLAGS_PROT_READ};
  backend_.check(backend_.call().mem_set_access(range.address, bytes(range), &access, 1), "allowing access to chunks");
}

void RangeMapping::veil(const ChunkRange& range, bool veiled) {
  if (backend_.hooks->veil(backend_.ordinal, range.address, bytes(range), veiled)) return;
  throw Error(UM_DRIVER_ERROR, "the kernel does not change who sees a chunk (vm.max_map_count?)");
}

void RangeMapping::show(ChunkRange* range, RawAccess access) {
  if (!backend_.hooks->in_host || range->shown == access) return;
  if (access == RawAccess::none) {
    veil(*range, true);
  } else {
    allow(*range, access == RawAccess::write);
    if (range->shown == RawAccess::none) veil(*range, false);
  }
  range->shown = access;
}

}  // namespace um
