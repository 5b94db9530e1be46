// The life of a device's ranges, in whole blocks: managed and plain memory, and addresses that are reserved for
// mappings; and how much of the host's tier they were promised.
#pragma once

#include <cstdint>
#include <mutex>

#include "devices/emulated/migrator.h"
#include "driver/types.h"
#include "um/block_ranges.h"

namespace um::emulated {

class Ranges {
 public:
  // All are borrowed.
  Ranges(BlockTable& table, Migrator& migrator, Link& link) : blocks_(table), migrator_(migrator), link_(link) {}
  ~Ranges();

  // 0 when it does not fit. Managed ranges are limited by the host tier, so that an eviction always finds a place;
  // plain ones take device memory away from managed blocks.
  uint64_t allocate_managed(uint64_t bytes);
  uint64_t allocate_plain(uint64_t bytes);
  bool free(uint64_t address);
  // Of the range that starts at `address`, 0 when none does.
  uint64_t bytes_at(uint64_t address);
  // What plain memory could have without any managed block leaving.
  uint64_t free_bytes();

  // Addresses alone. Nothing may be mapped there any more when they are freed.
  driver::CUresult reserve(uint64_t bytes, driver::CUdeviceptr* address);
  driver::CUresult free_reserved(uint64_t address, uint64_t bytes);

  // With `lock` held. False, and nothing is promised, where the host has not so many slots left.
  bool promise_host_slots(uint64_t count);
  void return_host_slots(uint64_t count) { promised_ -= count; }

  // Of this, of handles and of mappings: taken before the block table's, never in the fault handler.
  std::mutex lock;

 private:
  uint64_t take(uint32_t count, Kind kind);
  void release_block(uint32_t block);

  BlockTable& blocks_;
  Migrator& migrator_;
  Link& link_;
  BlockRanges taken_{kSpanBlocks};
  uint64_t promised_ = 0;  // slots of the host's tier: one for each managed block, and those of handles
};

}  // namespace um::emulated
