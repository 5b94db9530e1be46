// The driver's density prefetcher (uvm/uvm_perf_prefetch.c): which pages of a block come along with the faulted ones.
#pragma once

#include "um/page_mask.h"

namespace um::pages {

struct TreeBlock {
  uint32_t pages;           // of the block
  uint32_t big_page_pages;  // pages in 64 KiB
};

// The pages to bring besides `faulted`; may name pages that are resident already. `resident`: on the destination.
// Thrashing pages are neither brought nor do they bring others.
PageMask density_prefetch(TreeBlock block, const PageMask& resident, const PageMask& faulted,
                          const PageMask& thrashing);

}  // namespace um::pages
