// A block of 2 MiB, or the smaller one that an allocation ends with: where each of its pages is and who maps it.
#pragma once

#include <cstdint>
#include <memory>

#include "um/pages_chunks.h"
#include "um/pages_journal.h"
#include "um/pages_thrashing.h"

namespace um::pages {

struct Machine {
  uint64_t device_bytes;
  uint32_t page_bytes = 4096;  // the host's; 4, 16 or 64 KiB
  bool coherent = false;       // NVLink-C2C and NVLink2 on POWER9: the host maps device memory, accesses are counted
};

struct Policy {  // of a range
  bool read_mostly = false;
  Location preferred = Location::none;
  bool accessed_by[2] = {};  // by Processor
};

struct Block {
  uint64_t address;
  uint32_t pages;
  PageMask valid;
  PageMask resident[2], read[2], write[2];  // by Processor; mappings of what is not resident there are remote
  PageMask discarded;
  const Policy* policy;
  uint32_t root = kNone;  // of a full block
  PageMask backed;        // pages of a smaller block that have a place on the device
  bool mapped_once = false;
  uint32_t remote_accesses = 0;  // since the last notification
  std::unique_ptr<thrashing::Block> thrashing;

  PageMask anywhere() const { return resident[0] | resident[1]; }
  bool allows(Processor who, uint32_t page, bool writing) const {
    return (writing ? write : read)[index_of(who)].test(page);
  }
  // Both hold the pages, nobody writes them, nobody maps the other's.
  void duplicate(Processor to, const PageMask& copied);
  // Every mapping of a page that moves goes; of a page that was there, the other holder's.
  void relocate(Processor to, const PageMask& moved);
};

}  // namespace um::pages
