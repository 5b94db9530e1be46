// Who maps which pages of a block, and what a mapping costs.
#pragma once

#include "um/pages_block.h"
#include "um/pages_journal.h"

namespace um::pages {

class Mappings {
 public:
  // Both are borrowed.
  Mappings(const Machine& machine, Journal& journal) : machine_(machine), journal_(journal) {}

  bool reaches(Processor from, Processor to) const {
    return from == to || from == Processor::device || machine_.coherent;
  }
  // For whoever faulted on pages that are resident now; `written` of them by a store.
  void add_after_fault(Block& block, Processor who, const PageMask& pages, const PageMask& written);
  // For a processor that is advised to access the range, wherever the pages lie.
  void add_accessed_by(Block& block, Processor who, const PageMask& pages);
  // For a processor that does not hold the pages, where that is allowed.
  void add_remote(Block& block, Processor who, const PageMask& pages);
  // The host pages of a block are mapped for DMA once.
  void pay_first(Block& block);

 private:
  const Machine& machine_;
  Journal& journal_;
};

}  // namespace um::pages
