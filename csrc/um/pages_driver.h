// What the driver does to pages: services of faults, migrations, evictions, advice. One machine: one host, one device.
//
// `uvm/<file>` cites NVIDIA/open-gpu-kernel-modules 595.45.04, kernel-open/nvidia-uvm. Where um::Model has the same
// rule for whole blocks it is the same rule here for each page.
#pragma once

#include <deque>
#include <vector>

#include "um/pages_block.h"
#include "um/pages_chunks.h"
#include "um/pages_journal.h"
#include "um/pages_mappings.h"
#include "um/pages_thrashing.h"

namespace um::pages {

// Bytes of one request of the device: a line, what one warp asks for at a time.
inline constexpr uint64_t kRequestBytes = 128;

class Driver {
 public:
  Driver(const Machine& kind, const Costs& costs);

  const Machine machine;
  const uint32_t pages_per_block;
  Journal journal;

  uint32_t add_block(uint64_t address, uint32_t pages, const Policy* policy);
  void release(uint32_t index);  // frees its memory; the index may be used again
  Block& at(uint32_t index) { return blocks_[index]; }

  // One service of the faults of one block. Returns the pages that have to fault again because they are throttled.
  PageMask service(uint32_t index, Processor who, const PageMask& faults, bool write, Cause cause = Cause::coherence);
  // An access to a page that is mapped remotely. True when it made the device's access counter notify, which may
  // have migrated the block.
  void access_remotely(uint32_t index, Processor who, uint64_t bytes);
  // To be called before one asks what the block allows.
  void end_expired_pins(uint32_t index) {
    const Block& block = blocks_[index];
    if (block.thrashing && block.thrashing->pinned_count > 0) unmap_expired_pins(index);
  }
  // When a throttled page may be tried again.
  int64_t throttle_end_ns(uint32_t index, uint32_t page) const {
    return blocks_[index].thrashing->pages[page].throttle_end_ns;
  }

  void prefetch(uint32_t index, Processor to);
  void discard(uint32_t index);
  // Each is called once the range's policy has changed.
  void read_mostly_set(uint32_t index);
  void read_mostly_unset(uint32_t index);
  void preferred_location_changed(uint32_t index, Location former);
  void accessed_by_set(uint32_t index, Processor who);

 private:
  struct Move {  // of pages of one block to one processor
    Processor to;
    PageMask pages, speculative, duplicated;
    Cause cause;
    bool write;
  };

  bool full(const Block& block) const { return block.pages == pages_per_block; }

  void unmap_expired_pins(uint32_t index);
  PageMask throttle_or_pin(Block& block, Processor who, PageMask& faults, PageMask (&pinned)[2]);
  void choose(const Block& block, Processor who, const PageMask& faults, bool counted, const PageMask (&pinned)[2],
              PageMask (&to)[2]) const;
  PageMask speculate(const Block& block, Processor to, const PageMask& faults) const;

  Processor make_resident(uint32_t index, Move move);
  void copy(Block& block, const Move& move, const PageMask& pages);
  void leave_device(uint32_t index);
  void mark_used(Block& block);

  bool populate(uint32_t index, const PageMask& pages);
  void zero(const Block& block, const PageMask& pages);
  bool evict_one();
  void evict_pages(Block& block, const PageMask& pages);

  std::deque<Block> blocks_;
  std::vector<uint32_t> vacant_;
  Chunks chunks_;
  Mappings mappings_;
  Thrashing thrashing_;
};

}  // namespace um::pages
