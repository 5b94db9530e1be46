// Making pages resident: room on the device, copies, evictions.
#include <algorithm>

#include "um/pages_driver.h"

namespace um::pages {
namespace {

constexpr int kHost = 0, kDevice = 1;

}  // namespace

// uvm/uvm_va_block.c, uvm_va_block_make_resident_copy and _read_duplicate. Returns where the pages are in the end: on
// the host when the device has no room (uvm/uvm_types.h, UvmEventMapRemoteCauseOutOfMemory).
Processor Driver::make_resident(uint32_t index, Move move) {
  Block& block = blocks_[index];
  if (move.to == Processor::device && !populate(index, move.pages)) {
    move.to = Processor::host;
    move.duplicated = {};
  }
  const int to = index_of(move.to), from = index_of(other(move.to));
  const PageMask missing = move.pages - block.resident[to];
  const PageMask copied = (missing & block.resident[from]) - block.discarded;
  if (!missing.empty() && copied.empty()) ++journal.counters.shared.first_touches;
  copy(block, move, copied);
  const PageMask moved = move.pages - move.duplicated;
  if (move.write && !(moved & block.resident[0] & block.resident[1]).empty()) ++journal.counters.shared.collapses;
  block.duplicate(move.to, move.duplicated);
  block.relocate(move.to, moved);
  if (move.to == Processor::host) leave_device(index);
  if (move.to == Processor::device) mark_used(block);
  return move.to;
}

// A record for each run of pages with the same cause (block_copy_resident_pages_between): what faulted and what was
// prefetched are different records.
void Driver::copy(Block& block, const Move& move, const PageMask& pages) {
  if (pages.empty()) return;
  mappings_.pay_first(block);
  if (move.cause != Cause::user && move.to == Processor::device) journal.spend(journal.costs.migrate_ns);
  const Direction direction = move.to == Processor::device ? Direction::h2d : Direction::d2h;
  const auto send = [&](Region run, bool speculative) {
    journal.transfer(direction, speculative ? Cause::speculative : move.cause,
                     block.address + uint64_t{run.first} * machine.page_bytes,
                     uint64_t{run.pages()} * machine.page_bytes);
    if (move.cause == Cause::user || block.policy->read_mostly) {
      thrashing_.reset(block.thrashing.get(), run);
    } else {
      thrashing_.migrated(block.thrashing, block.pages, run, move.to, speculative);
    }
  };
  pages.each_run([&](Region run) {
    while (run.first < run.outer) {
      const bool speculative = move.speculative.test(run.first);
      const uint32_t end = std::min(move.speculative.next(run.first, !speculative), run.outer);
      send({run.first, end}, speculative);
      run.first = end;
    }
  });
}

// A chunk whose last page has left is unused, which is as good as free: see um/eviction_order.h. Smaller blocks keep
// their places until these are evicted or freed.
void Driver::leave_device(uint32_t index) {
  Block& block = blocks_[index];
  if (block.root == kNone || !block.resident[kDevice].empty()) return;
  chunks_.give_root(block.root);
  block.root = kNone;
}

// On every service that leaves pages on the device, also one that moves nothing (block_mark_memory_used). Full blocks
// only.
void Driver::mark_used(Block& block) {
  if (block.root != kNone) chunks_.refresh(block.root, rules::Queue::used);
}

// ---- room -----------------------------------------------------------------------------------------------------------

// A whole chunk for a full block; for a smaller one 64 KiB at a time, and page by page behind the last whole 64 KiB
// (uvm/uvm_va_block.c, block_gpu_chunk_index). A new place is zeroed where nothing is resident anywhere
// (block_zero_new_gpu_chunk).
bool Driver::populate(uint32_t index, const PageMask& pages) {
  Block& block = blocks_[index];
  if (full(block)) {
    if (block.root != kNone) return true;
    while ((block.root = chunks_.take_root(index)) == kNone)
      if (!evict_one()) return false;
    zero(block, block.valid);
    return true;
  }
  const uint32_t big = std::max(65536 / machine.page_bytes, 1u), whole = block.pages / big * big;
  // An eviction on the way may take a place that the block had already: hence until all pages have one.
  for (uint32_t page; (page = (pages - block.backed).next(0)) < kMostPages;) {
    const Region unit = page < whole ? Region{page / big * big, page / big * big + big} : Region{page, page + 1};
    while (!chunks_.take_piece(index, unit))
      if (!evict_one()) return false;
    block.backed.fill(unit);
    zero(block, PageMask::of(unit));
  }
  return true;
}

void Driver::zero(const Block& block, const PageMask& pages) {
  const uint64_t bytes = uint64_t{(pages - (block.anywhere() - block.discarded)).count()} * machine.page_bytes;
  journal.counters.zeroed_bytes += static_cast<int64_t>(bytes);
  journal.spend_bytes(bytes, journal.costs.zero_bytes_per_s);
}

// The first root of the order, with everything that lies in it (uvm/uvm_pmm_gpu.c, pick_and_evict_root_chunk).
bool Driver::evict_one() {
  const uint32_t root = chunks_.victim();
  if (root == kNone) return false;
  journal.spend(journal.costs.evict_ns);
  if (chunks_.split(root)) {
    const std::vector<Piece> pieces = chunks_.pieces(root);
    for (size_t i = 0; i < pieces.size();) {
      const uint32_t owner = pieces[i].block;
      PageMask pages;
      for (; i < pieces.size() && pieces[i].block == owner; ++i) pages.fill(pieces[i].pages);
      evict_pages(blocks_[owner], pages);
      blocks_[owner].backed -= pages;
    }
  } else {
    Block& block = blocks_[chunks_.owner(root)];
    evict_pages(block, block.valid);
    block.root = kNone;
  }
  chunks_.give_root(root);
  return true;
}

// There is no dirty bit: what is on the device is copied back unless the host has a valid copy or it is discarded
// (uvm/uvm_va_block.c, uvm_va_block_evict_chunks). Then AccessedBy maps again, and where accesses are counted the
// device maps what it lost (block_add_eviction_mappings, uvm_perf_map_remote_on_eviction).
void Driver::evict_pages(Block& block, const PageMask& pages) {
  const PageMask leaving = pages & block.resident[kDevice];
  const PageMask kept = leaving - block.discarded;
  const PageMask copied = kept - block.resident[kHost];
  if (leaving.empty() && (pages & block.discarded).empty()) return;
  ++(copied.empty() ? journal.counters.shared.evictions_dropped : journal.counters.shared.evictions);
  copied.each_run([&](Region run) {
    journal.transfer(Direction::d2h, Cause::eviction, block.address + uint64_t{run.first} * machine.page_bytes,
                     uint64_t{run.pages()} * machine.page_bytes);
  });
  block.resident[kDevice] -= leaving;
  block.resident[kHost] |= kept;
  for (int by : {kHost, kDevice}) {  // the host keeps what it maps of its own copies
    const PageMask lost = by == kDevice ? leaving : copied | (leaving & block.discarded);
    block.read[by] -= lost;
    block.write[by] -= lost;
  }
  mappings_.add_accessed_by(block, Processor::device, leaving);
  mappings_.add_accessed_by(block, Processor::host, leaving);
  if (machine.coherent) mappings_.add_remote(block, Processor::device, leaving);
}

}  // namespace um::pages
