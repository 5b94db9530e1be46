// The page tables of ranges over chunks: where each is mapped, and who may see what it shows.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/backend.h"
#include "memory/chunks.h"
#include "memory/fence.h"
#include "memory/managed_heap.h"

namespace um {

// What somebody who was announced to nobody may do, on the emulated device.
enum class RawAccess : uint8_t { none, read, write };

struct SharedChunk;

// Addresses that show the same chunks for as long as it exists.
struct ChunkRange {
  uint64_t address = 0;
  Block* room = nullptr;  // parked there; while the range is held, whoever has it keeps a block there
  Chunks::List chunks;
  Fences::Fence last_use = 0;  // of whoever had this range last; holds a reference
  uint64_t taken = 0;          // of its chunks, how many somebody has, through whichever range
  uint64_t since = 0;          // when it was taken last, of all takings
  uint64_t given = 0;          // when it was given back last, in that order
  bool held = false;           // it is somebody's
  bool handed_out = false;     // code outside of ops has its address (memory/reserved_addresses.h): it does not end
  bool kept = false;           // it stays mapped for as long as its chunks are there
  uint64_t stay = 0;           // memory/layout.h: the one that it is held for
  Helper::Ticket mapping = 0;  // the job that maps it, until somebody wants it
  bool refused = false;        // the driver did not
  RawAccess shown = RawAccess::write;
  bool of_part = false;           // it is for parts of its chunk, which somebody has through another range
  SharedChunk* shared = nullptr;  // memory/shared_chunks.h: of whose chunk somebody has a part through it
  uint64_t part = 0;              // its units
};

class RangeMapping {
 public:
  // `rooms` are addresses, in whole chunks; both are borrowed, and outlive this.
  RangeMapping(const Backend& backend, ManagedHeap& rooms, uint64_t chunk_bytes)
      : backend_(backend), rooms_(rooms), chunk_bytes_(chunk_bytes) {}

  // Gives a range addresses for its chunks, mapped now, or by the helper. Throws um::Error, and then it has none.
  void open(ChunkRange* range, bool ahead);
  // What the helper has not begun to map is mapped now. False where the driver refused.
  bool settle(ChunkRange* range) noexcept;
  // It has no addresses any more. False, and it has, where the driver refuses.
  bool close(ChunkRange* range) noexcept;
  // Maps a range's chunks at its addresses, and takes them away again; what has the addresses keeps them. `map` throws
  // um::Error, and then nothing is mapped. False where the driver refuses.
  void map(const ChunkRange& range);
  bool unmap(ChunkRange* range) noexcept;
  // What accesses that no op announced may do in a range from now on, on the emulated device: any other is a fault.
  // Copies may do everything. Whoever takes a range may write. Nothing on a GPU. Throws um::Error.
  void show(ChunkRange* range, RawAccess access);

  bool costs_nothing() const { return backend_.hooks->in_host; }  // the driver's calls, on the emulated device
  uint64_t mapped() const { return mapped_; }                     // chunks, counted once for each range

 private:
  uint64_t bytes(const ChunkRange& range) const { return range.chunks.size() * chunk_bytes_; }
  void map_all(const ChunkRange& range);
  void allow(const ChunkRange& range, bool write);
  void veil(const ChunkRange& range, bool veiled);

  const Backend& backend_;
  ManagedHeap& rooms_;
  const uint64_t chunk_bytes_;
  uint64_t mapped_ = 0;
};

}  // namespace um
