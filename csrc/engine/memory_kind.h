// A kind of memory (um_memory): how its allocations are made, used by ops, held for code outside of ops, and freed. A
// device has one object for each kind (DeviceBase::kinds), so allocating, freeing, ops and exports need no branch on
// the kind.
//
// Every call requires the device's lock, except touch().
#pragma once

#include <cstdint>

#include "base/thread_safety.h"
#include "engine/running_op.h"
#include "memory/allocations.h"

namespace um {

class MemoryKind {
 public:
  struct Request {
    uint64_t bytes;
    um_placement placement;
    Birth birth;
    RunningOp* op;  // within which the memory is requested; nullptr: none
    driver::CUstream stream;
    bool reachable;  // kernels that no op announces may use the memory
  };

  virtual ~MemoryKind() = default;

  // ---- make ----
  // Makes an allocation. `op->fixed` has space for it. Throws um::Error.
  virtual Block* make(const Request& request) REQUIRES(device_lock) = 0;
  // Prepares a new allocation for its first use. Throws um::Error, and then the caller frees it.
  virtual void place(Block* /*block*/, const Request& /*request*/) REQUIRES(device_lock) {}
  // Touches a new allocation of a running op, without the lock. Returns whether that may have evicted its operands.
  virtual bool touch(uint64_t /*address*/, const Request& /*request*/) { return false; }

  // ---- use ----
  // Notes an operand of an op that begins.
  virtual void use(RunningOp& op, const Operand& operand) REQUIRES(device_lock) = 0;
  // Notes the storage that shows the allocation's address.
  virtual void meet(Block* block, void* storage) REQUIRES(device_lock) = 0;
  // Notes that a stream is given work which uses the allocation, and which no op announces. Throws um::Error.
  virtual void lend(Block* /*block*/, driver::CUstream /*stream*/) REQUIRES(device_lock) {}
  // Moves a range of an allocation ahead of its use. Throws um::Error.
  virtual void prefetch(Block* block, uint64_t address, uint64_t bytes, bool to_host, driver::CUstream stream)
      REQUIRES(device_lock) = 0;

  // ---- hold: exports ----
  // Returns whether the allocation can be exported. `lasting`: until memory runs out.
  virtual bool can_hold(const Block& block, bool lasting) const REQUIRES(device_lock) = 0;
  // Pins an allocation for its first export, before that is counted, and makes it ready for the code that gets the
  // address. `for_life`: the address is the allocation's own from now on. Throws um::Error.
  virtual void hold(Block* /*block*/, bool /*for_life*/) REQUIRES(device_lock) {}
  // Ends that, after the last export.
  virtual void let_go(Block* /*block*/) noexcept REQUIRES(device_lock) {}
  // Returns the address that the allocation shows for life. It is compared with others, so nothing is pinned.
  virtual uint64_t shown(Block* block) REQUIRES(device_lock) { return block->address; }

  // ---- free ----
  virtual void free(Block* block) noexcept REQUIRES(device_lock) = 0;
};

}  // namespace um
