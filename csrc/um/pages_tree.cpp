#include "um/pages_tree.h"

#include <algorithm>

namespace um::pages {
namespace {

constexpr uint32_t kThresholdPercent = 51;  // uvm_perf_prefetch_threshold

// 64 KiB big pages that hold a fault are filled first, and so is the rest of the block behind the last whole one
// (grow_fault_granularity). Blocks start on 2 MiB here, so that there is never a rest before the first one.
PageMask filled_big_pages(TreeBlock block, const PageMask& faulted, const PageMask& thrashing) {
  PageMask filled;
  for (uint32_t first = 0; first < block.pages; first += block.big_page_pages) {
    const Region unit{first, std::min(first + block.big_page_pages, block.pages)};
    if (faulted.count(unit) != 0 && thrashing.count(unit) == 0) filled.fill(unit);
  }
  return filled;
}

// The largest aligned region around a page that is dense enough, cut at the block's end (compute_prefetch_region).
Region densest_region(TreeBlock block, const PageMask& counted, uint32_t page) {
  Region best{page, page};
  for (uint32_t size = 1;; size *= 2) {
    const uint32_t first = page / size * size;
    const Region region{first, std::min(first + size, block.pages)};
    if (counted.count(region) * 100 > region.pages() * kThresholdPercent) best = region;
    if (size >= block.pages) return best;
  }
}

}  // namespace

// What one fault brings is not counted for the next: the tree is fixed for the whole service. A fault inside a region
// that was chosen already would choose the same one, because their ancestors beyond it are the same.
PageMask density_prefetch(TreeBlock block, const PageMask& resident, const PageMask& faulted,
                          const PageMask& thrashing) {
  const PageMask counted = resident | faulted | filled_big_pages(block, faulted, thrashing);
  const PageMask asking = faulted - thrashing;
  PageMask brought;
  for (uint32_t page = asking.next(0); page < kMostPages;) {
    const Region region = densest_region(block, counted, page);
    brought.fill(region);
    if (region.outer == block.pages) break;  // compute_prefetch_mask stops at the block's end
    page = asking.next(std::max(region.outer, page + 1));
  }
  return brought - faulted - thrashing;
}

}  // namespace um::pages
