// What programs and drivers do with managed blocks: accesses that fault, prefetches, advice, discards and pins.
#pragma once

#include <atomic>
#include <cstdint>

#include "devices/emulated/migrator.h"

namespace um::emulated {

class ManagedMemory {
 public:
  // All are borrowed. `ordered`: a fault that `touch` did not foresee counts as unordered.
  ManagedMemory(BlockTable& table, Migrator& migrator, Link& link, Delays& delays, bool ordered)
      : blocks_(table), migrator_(migrator), link_(link), delays_(delays), ordered_(ordered) {}

  // Whether the whole range is managed memory.
  bool holds(uint64_t address, uint64_t bytes);

  // A fault of the device at `address` in the block. With the table's lock held, and async-signal-safe.
  Service fault(uint32_t block, uint64_t address, bool write) { return serve(block, address, write, ordered_); }
  // The ordered way: the same service for every block of the range, ahead of the op. False when none needed it.
  bool touch(uint64_t address, uint64_t bytes, bool write);
  void prefetch(uint64_t address, uint64_t bytes, Processor to);
  void advise(uint64_t address, uint64_t bytes, Advice advice, Processor processor);
  void discard(uint64_t address, uint64_t bytes);
  // Of plain memory too, which is always there. False when it cannot all be on the device at once.
  bool pin(uint64_t address, uint64_t bytes);
  void unpin(uint64_t address, uint64_t bytes);
  // The calling thread is in a driver call about managed memory for so long.
  void charge_call(int64_t um_driver_costs::* cost);

  // With the table's lock held.
  void tell(driver::DeviceTotals& totals) const;

  // Reads without the lock, since each op asks four times. The sum may lack the newest fault of another thread.
  driver::StallTimes stood() const;

 private:
  Service serve(uint32_t block, uint64_t address, bool write, bool unordered);

  BlockTable& blocks_;
  Migrator& migrator_;
  Link& link_;
  Delays& delays_;
  const bool ordered_;
  int64_t unordered_faults_ = 0;
  std::atomic<int64_t> first_touch_ns_{0}, migration_ns_{0}, room_ns_{0}, prefetch_ns_{0};  // changed under the lock
};

}  // namespace um::emulated
