// What ops and calls do with the managed memory of a simulated device.
#pragma once

#include <cstdint>

#include "devices/simulated/migrator.h"

namespace um::simulator {

class ManagedMemory {
 public:
  // Both are borrowed. `ordered`: a fault that `touch` did not foresee counts as unordered.
  ManagedMemory(BlockTable& table, Migrator& migrator, bool ordered)
      : blocks_(table), migrator_(migrator), ordered_(ordered) {}

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

  int64_t unordered_faults() const { return unordered_faults_; }

 private:
  bool covered(uint32_t block, bool write) const;
  bool serve(uint32_t block, bool write);

  BlockTable& blocks_;
  Migrator& migrator_;
  const bool ordered_;
  int64_t unordered_faults_ = 0;
};

}  // namespace um::simulator
