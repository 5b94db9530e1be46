// Where physical memory is mapped in reserved ranges, and who may access it: what a GPU's driver would refuse is
// refused.
//
// Which slot lies under which block is settled by `map`. A block gets page tables of its own when somebody may access
// it first, and keeps them until it is unmapped: who may do what there changes their protection, so that no page is
// faulted in twice however often its contents move.
#pragma once

#include <cstdint>
#include <map>

#include "devices/emulated/copy_engine.h"
#include "devices/emulated/physical_memory.h"

namespace um::emulated {

// What cuMemSetAccess changes; kUnchanged for a processor that it does not name.
struct AccessGrant {
  static constexpr uint8_t kUnchanged = 0xFF;
  uint8_t device = kUnchanged, host = kUnchanged;
};

class Mappings {
 public:
  // All are borrowed.
  Mappings(BlockTable& table, Ranges& ranges, PhysicalMemory& physical, const CopyEngine& copies, Delays& delays)
      : blocks_(table), ranges_(ranges), physical_(physical), copies_(copies), delays_(delays) {}
  ~Mappings();

  driver::CUresult map(uint64_t address, uint64_t bytes, uint64_t handle);
  // These wait for the copies that are at work on the range, not for those that wait in a stream.
  driver::CUresult unmap(uint64_t address, uint64_t bytes);
  driver::CUresult set_access(uint64_t address, uint64_t bytes, AccessGrant grant);
  // What is mapped there is for copies alone from now on, whoever has access to it / the opposite. Whole mappings of
  // this device. False when the kernel refuses (the limit of mappings).
  bool veil(uint64_t address, uint64_t bytes, bool veiled);

  // A fault of the device at `address` in the block. With the table's lock held, and async-signal-safe.
  Service fault(uint32_t block, uint64_t address, bool write);
  // After Service::asks, where nobody answered: a write to what is read-only is carried out, all else is refused.
  Service carry_out(uint64_t address, bool write);
  // With the table's lock held.
  int64_t silent_writes() const { return silent_writes_; }

 private:
  struct Run {
    uint32_t first, count;
    uint32_t end() const { return first + count; }
  };
  // A mapping begins at a block, is as long as it was made, and goes as a whole.
  struct MappedRange {
    uint32_t count;
    uint64_t handle;
  };

  // With the lock of the ranges.
  bool whole_blocks(uint64_t address, uint64_t bytes, Run* out) const;
  bool whole_mappings(uint64_t address, uint64_t bytes, Run* out) const;
  std::unique_lock<SpinLock> lock_without_copies(Run run);
  // With that of the table too.
  bool show_access(uint32_t block, uint8_t wanted);
  bool set_block_access(uint32_t block, uint8_t device, uint8_t host);
  void put_slot(uint32_t block, const Handle& handle, uint32_t slot);
  void take_slot_away(uint32_t block);

  BlockTable& blocks_;
  Ranges& ranges_;
  PhysicalMemory& physical_;
  const CopyEngine& copies_;
  Delays& delays_;
  std::map<uint32_t, MappedRange> mapped_;  // by first block
  int64_t silent_writes_ = 0;
};

}  // namespace um::emulated
