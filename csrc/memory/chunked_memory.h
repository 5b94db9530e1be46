// Memory for explicit swapping: address space in slots of one chunk, physical chunks under some of them, and host
// memory for the contents of blocks that left. It knows no ops: who is where, and when, is engine/swapper.h's.
//
// A slot is empty; or its chunk is a live block's; or it is cached: the block was freed, and its chunk stays mapped
// until somebody needs it elsewhere or gets the same addresses again. Not thread-safe: the device's lock is held, and
// the device's context is current.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "memory/arena.h"
#include "memory/backend.h"
#include "memory/chunk_pool.h"
#include "memory/chunk_slots.h"
#include "memory/fence.h"
#include "memory/host_chunks.h"
#include "memory/managed_heap.h"
#include "memory/statistics.h"
#include "umadvise.h"

namespace um {

class ChunkedMemory {
 public:
  // Throws um::Error: UM_UNSUPPORTED where the device cannot do it, UM_INVALID_ARGUMENT for a bad chunk size or budget.
  ChunkedMemory(const Backend& backend, const um_chunk_options& options, Fences& fences);
  // Every block and arena was freed before (Allocations::trim), and fences are still there. Whoever cares whether the
  // driver takes its memory back calls give_back before.
  ~ChunkedMemory() { static_cast<void>(give_back()); }
  ChunkedMemory(const ChunkedMemory&) = delete;
  ChunkedMemory& operator=(const ChunkedMemory&) = delete;

  // What the options ask for, or the device's default.
  static uint64_t wanted_chunk_bytes(const Backend& backend, const um_chunk_options& options);
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Requests above this many bytes have chunks of their own.
  uint64_t most_small_bytes() const { return most_small_bytes_; }
  // Chunks beyond it are given back as soon as they are free; until then surplus() tells how many there are. Throws
  // um::Error for less than one chunk.
  void set_budget(uint64_t bytes);
  void set_host_budget(uint64_t bytes) { host_.set_budget(bytes); }  // 0: what the machine has available now
  uint64_t surplus() const { return pool_.surplus(); }
  // A fence after everything that the device has been given until now, with one reference: asked for when an arena of
  // small blocks empties. Without it the chunk is taken elsewhere only after the whole device has been waited for.
  void set_marker(std::function<Fences::Fence()> marker) { marker_ = std::move(marker); }

  // ---- chunks under large blocks ----
  uint64_t chunks_of(const Block& block) const { return block.bytes / chunk_bytes_; }
  // Those of the block that are its own: all or none.
  uint64_t backed(const Block& block) const;
  // How many could be had now without taking any from live blocks; those whose last use must be waited for included.
  uint64_t obtainable() const;
  // A chunk under every slot, which the device may read and write, shown as show() says. Waits for the last use of what
  // is taken from freed ranges; what `first_user` is given from now on runs after the last use of what lay here before.
  // False, and nothing changed, when there are not enough. Throws um::Error, and then the block has none.
  bool back(const Block& block, driver::CUstream first_user, Access shown = Access::write);
  // The block has no chunks any more, and they are no longer mapped here; nobody uses them. One that the driver refuses
  // to unmap is unmapped when somebody needs it.
  void strip(const Block& block) noexcept;
  // Before the block is freed: its chunks stay where they are. Also right for blocks without any.
  void freed(const Block& block, Fences::Fence last_use) noexcept;
  // What an access that no op announced may do in a backed block from now on, on the emulated device: any other is a
  // fault. Copies may do everything. Nothing on a GPU. Throws um::Error.
  void show(const Block& block, Access shown);
  // Nothing is mapped where a block without chunks lies. Throws um::Error.
  void vacate(const Block& block);

  // ---- host memory ----
  // For all chunks of the block, used by what the stream is given from now on or, without one, by the CPU. nullptr when
  // the host's budget is used up. Throws um::Error.
  HostRange* take_host(const Block& block, const driver::CUstream* user = nullptr) {
    return host_.take(chunks_of(block), user);
  }
  void give_host(HostRange* range, Fences::Fence last_use) noexcept { host_.give(range, last_use); }
  // The bytes that were asked for when the block was allocated, chunk by chunk. Throw um::Error: then some copies may
  // run.
  void copy_out(const Block& block, HostRange* to, driver::CUstream stream) const;
  void copy_in(const Block& block, HostRange* from, driver::CUstream stream) const;
  // By the CPU, which waits for nothing.
  void read(const HostRange* from, uint64_t offset, void* to, uint64_t bytes) const;
  void write(HostRange* to, uint64_t offset, const void* from, uint64_t bytes) const;
  // With um_chunk_options::host_mapped: the host's chunks at the addresses of a block that has none of the device's.
  // Throws um::Error, and then none is mapped there that the driver would take away again.
  void map_host(const Block& block, HostRange* range);
  // Before back(), which waits for nobody who still uses that mapping. One that the driver refuses to undo is undone
  // when somebody needs the place.
  void unmap_host(const Block& block) noexcept;

  // ---- for Allocations ----
  // Address space without chunks, for large blocks: whole slots. Released, whatever is cached there is unmapped.
  ArenaSource& address_space() { return address_space_; }
  // One chunk, mapped. Throws UM_OUT_OF_DEVICE_MEMORY when none is obtainable.
  ArenaSource& small_arenas() { return small_arenas_; }
  void count_in(Level* reserved_bytes) { pool_.count_in(reserved_bytes); }
  // Everything that nobody uses goes back to the driver. False when it kept something.
  bool give_back() noexcept;

  // ---- what there is, in chunks ----
  uint64_t budget() const { return pool_.budget(); }
  uint64_t created() const { return pool_.created(); }
  const Level& large() const { return large_; }   // under live large blocks
  const Level& pinned() const { return small_; }  // of arenas of small blocks
  const Level& host_in_use() const { return host_.in_use; }
  uint64_t host_pool() const { return host_.created(); }
  void reset_peaks();

 private:
  class AddressSpace : public ArenaSource {
   public:
    explicit AddressSpace(ChunkedMemory& memory) : memory_(memory) {}
    Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) override;
    bool release(Range range) noexcept override;

   private:
    ChunkedMemory& memory_;
  };
  class SmallArenas : public ArenaSource {
   public:
    explicit SmallArenas(ChunkedMemory& memory) : memory_(memory) {}
    Range acquire(uint64_t least_bytes, uint64_t wanted_bytes) override;
    bool release(Range range) noexcept override;

   private:
    ChunkedMemory& memory_;
  };

  static constexpr uint64_t kSmallRegionSlots = 64;

  bool gather(uint64_t chunks);
  void take_passed(uint64_t chunks) noexcept;
  bool take_ready(Slot& slot) noexcept;
  void take(Slot& slot);
  void clear(Slot& slot);
  void claim_cached(Slot* slots, uint64_t count) noexcept;
  void disown(Slot* slots, uint64_t count) noexcept;
  void unmap_host(Slot* slots, uint64_t count) noexcept;
  void settle(Slot* slots, uint64_t count, driver::CUstream first_user);
  void replace_fence(Slot& slot, Fences::Fence fence) noexcept;
  void shed() noexcept;
  bool clear_all(Slot* slots, uint64_t count) noexcept;
  template <class Copy>
  void each_piece(const HostRange& range, uint64_t offset, uint64_t bytes, const Copy& copy) const;
  Slot* small_slot();
  Slot* own_small();
  Fences::Fence mark() const noexcept;
  void disown_small(Slot* slot) noexcept;

  const Backend& backend_;
  Fences& fences_;
  const uint64_t chunk_bytes_, most_small_bytes_;
  ChunkPool pool_;
  ChunkSlots slots_;
  HostChunks host_;
  std::vector<uint64_t> small_regions_;  // addresses of reservations for arenas of small blocks
  AddressSpace address_space_{*this};
  SmallArenas small_arenas_{*this};
  std::function<Fences::Fence()> marker_;
  Level large_, small_;
};

}  // namespace um
