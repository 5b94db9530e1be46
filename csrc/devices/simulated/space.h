// The address space of a simulated device: addresses behind which there are no bytes, blocks that move by the rules of
// um::Model, and a clock that is told what moved. Not thread-safe: one simulation has one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "devices/emulated/resident_blocks.h"
#include "devices/simulated/clock.h"
#include "um/block_ranges.h"
#include "um/model.h"
#include "um/plain_chunks.h"

namespace um::simulator {

// Addresses that no process of a 64-bit x86 or Arm Linux has unless it asks for more than 47 bits, and which the
// library's address map holds all the same.
inline constexpr uint64_t kFirstAddress = uint64_t{1} << 47;
inline constexpr int kMostDevices = 64;
inline constexpr uint64_t kSpanBytes = kFirstAddress / kMostDevices;
inline constexpr uint32_t kSpanBlocks = static_cast<uint32_t>(kSpanBytes / kBlockBytes);

class Gpu;

class Space {
 public:
  // Throws std::bad_alloc. `device` is the index of its span.
  Space(int device, const um_emulated_options& options);

  // In whole blocks. 0 when it does not fit; managed ranges are limited by the host's memory.
  uint64_t allocate_managed(uint64_t bytes);
  uint64_t allocate_plain(uint64_t bytes);
  // Addresses alone.
  uint64_t reserve(uint64_t bytes);
  bool free(uint64_t address);
  // Memory of the device that has no address. False, and nothing is taken, where there is less.
  bool take_physical(uint64_t blocks);
  void give_physical(uint64_t blocks);
  bool managed(uint64_t address, uint64_t bytes) const;  // the whole range is managed memory

  // The device accesses the range. False when it could, everywhere, without a fault.
  bool touch(uint64_t address, uint64_t bytes, bool write);
  // A fault that the guard did not foresee, of the block that holds the address.
  void fault(uint64_t address, bool write);
  void prefetch(uint64_t address, uint64_t bytes, Processor to);
  void advise(uint64_t address, uint64_t bytes, Advice advice, Processor processor);
  void discard(uint64_t address, uint64_t bytes);
  bool pin(uint64_t address, uint64_t bytes);
  void unpin(uint64_t address, uint64_t bytes);
  // The copy engine, between ordinary memory and the range.
  void store(uint64_t address, uint64_t bytes);
  void load(uint64_t address, uint64_t bytes);
  // The running op worked on the range: what it did over the link, and what it had to wait for.
  void note_use(uint64_t address, uint64_t bytes);

  void residency(uint64_t address, uint64_t bytes, uint64_t* device_blocks, uint64_t* host_blocks) const;
  void tag(uint64_t address, uint64_t bytes, uint32_t tag);
  void reset_peaks() { resident_.reset_peaks(); }
  emulated::Totals totals() const;
  uint64_t free_bytes() const { return plain_.free_chunks() * kBlockBytes; }
  uint64_t capacity_bytes() const { return chunks_ * kBlockBytes; }

  Clock* clock = nullptr;  // nullptr: nobody asks for times
  Gpu* gpu = nullptr;      // nullptr: calls take no time but the clock's own
  Lane lane = Lane::ops;   // of prefetches from now on

 private:
  enum class Kind : uint8_t { free, managed, plain, reserved };
  struct Block {
    int64_t ready_ns;  // when the last prefetch beside the ops will have brought it
    Kind kind;
    uint8_t tag;
    bool on_device, on_host, mapped_once, preferred_here;
  };

  uint32_t allocate(uint64_t bytes, Kind kind);
  void release_block(uint32_t index);
  bool covered(uint32_t block, bool write) const;
  bool serve(uint32_t block, bool write);
  void follow(const Outcome& outcome);
  void migrate(const Outcome& outcome, uint32_t block);
  int64_t chunk_ready_ns(const Outcome& outcome);
  bool first_mapping(uint32_t block);
  void end_migration();
  template <class Each>
  void each_piece(uint64_t address, uint64_t bytes, const Each& each) const {
    each_block_of(base_, address, bytes, each);
  }

  const uint64_t base_;
  const uint32_t chunks_;
  const uint64_t most_managed_blocks_;
  Model model_;
  PlainChunks plain_;
  BlockRanges ranges_{kSpanBlocks};
  std::vector<Block> blocks_;  // as far up as any was ever allocated
  emulated::ResidentBlocks resident_;
  uint64_t managed_blocks_ = 0, host_blocks_ = 0;
  int64_t unordered_faults_ = 0, last_ready_ns_ = 0;
  // Free chunks whose last contents are on their way to the host: when they will be there, ascending.
  std::deque<int64_t> leaving_ns_;
  const bool ordered_;
};

}  // namespace um::simulator
