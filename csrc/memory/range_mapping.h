// The page tables of ranges over chunks: where each is mapped, and who may see what it shows.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/backend.h"
#include "memory/chunks.h"
#include "memory/fence.h"
#include "memory/managed_heap.h"

namespace um {

// The accesses that code outside of ops may make on the emulated device.
enum class RawAccess : uint8_t { none, read, write };

struct SharedChunk;

// An address range that shows the same chunks for as long as it exists.
struct ChunkRange {
  uint64_t address = 0;
  Block* room = nullptr;  // a block parked at its address; nullptr while an allocation lies there
  Chunks::List chunks;
  Fences::Fence last_use = 0;  // of its last holder; holds a reference
  uint64_t taken = 0;          // how many of its chunks are held, through any range
  uint64_t since = 0;          // the number of its last taking
  uint64_t given = 0;          // Chunks::given_back() when it was given back
  bool held = false;           // an allocation has it
  bool handed_out = false;     // code outside of ops has its address, so it must not end (memory/reserved_addresses.h)
  bool kept = false;           // it remains mapped as long as its chunks exist
  uint64_t stay = 0;           // the number of the stay that holds it (memory/layout.h)
  Helper::Ticket mapping = 0;  // the job that maps it; 0: finish_mapping() was called
  bool refused = false;        // the driver refused to map it
  RawAccess shown = RawAccess::write;
  bool of_part = false;           // it is for parts of its chunk, which another range holds
  SharedChunk* shared = nullptr;  // the shared chunk of which it holds a part; nullptr: none
  uint64_t part = 0;              // the units of that part, as bits
};

class RangeMapping {
 public:
  // `rooms` provides addresses in whole chunks. Both are borrowed, and outlive this.
  RangeMapping(const Backend& backend, ManagedHeap& rooms, uint64_t chunk_bytes)
      : backend_(backend), rooms_(rooms), chunk_bytes_(chunk_bytes) {}

  // Gives a range addresses, and maps its chunks now or, if `ahead`, in the helper. Throws um::Error, and then the
  // range has no addresses.
  void open(ChunkRange* range, bool ahead);
  // Completes a mapping that the helper was asked for. Returns false if the driver refused it.
  bool finish_mapping(ChunkRange* range) noexcept;
  // Unmaps a range and frees its addresses. Returns false, with nothing changed, if the driver refused.
  [[nodiscard]] bool close(ChunkRange* range) noexcept;
  // Maps a range's chunks at its addresses, or unmaps them; the addresses remain allocated. map() throws um::Error, and
  // then nothing is mapped. unmap() returns false if the driver refused.
  void map(const ChunkRange& range);
  [[nodiscard]] bool unmap(ChunkRange* range) noexcept;
  // Sets which accesses outside of ops the emulated device allows in a range; it catches all others. Copies are always
  // allowed. A range that was just taken may be written. Does nothing on a GPU. Throws um::Error.
  void show(ChunkRange* range, RawAccess access);

  bool costs_nothing() const { return backend_.hooks->in_host; }  // mapping does not, on the emulated device
  uint64_t mapped() const { return mapped_; }                     // chunks; each counts once for each range

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
