// The op that runs in a thread, and the contexts of the last ops, to which events are attributed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/movable.h"
#include "engine/op_identity.h"
#include "umadvise.h"

namespace um {

// An op's uses of managed memory: first its operands, then its allocations.
class WorkingSet {
 public:
  // Bounds the passes over the set until none of it moves. It is more than any set that fits was seen to need, and few
  // enough if another thread keeps evicting it.
  static constexpr int kMostPasses = 16;

  void clear() { accesses_.clear(), most_pages_ = 0; }
  void add(uint64_t address, uint64_t bytes, bool write);
  void remove(uint64_t address) noexcept;  // an allocation that is freed before the op ends
  const std::vector<um_access>& accesses() const { return accesses_; }
  // Returns whether the op writes to a 2 MiB page; nothing if it does not use the page.
  std::optional<bool> use_of(uint64_t page_address) const;
  // Returns the bytes of all distinct 2 MiB pages. If they are surely at most `limit_bytes`, may return more than they
  // are, up to that limit.
  uint64_t bytes_if_above(uint64_t limit_bytes) const;

 private:
  std::vector<um_access> accesses_;
  uint64_t most_pages_ = 0;  // a sum over accesses, in which shared pages count repeatedly
};

// An operand of an op: a block, and an offset in it.
struct Operand {
  Block* block;
  uint64_t offset_bytes;
  const um_access* access;  // valid while the op begins
};

struct RunningOp {
  um_device* device = nullptr;
  OpIdentity identity;
  bool untouched = false;         // UM_OP_CREATES
  bool beside = false;            // UM_OP_BESIDE
  bool may_begin_a_step = false;  // neither UM_OP_BESIDE nor UM_OP_AT_EDGE nor UM_OP_RETRIED
  bool differentiated = false;    // UM_OP_DIFFERENTIATED
  driver::CUstream stream{};
  WorkingSet working_set;
  std::vector<Movable::Use> swapped;   // memory that may move, pinned for the op; first its operands
  size_t swapped_operands = 0;         // how many of `swapped` are operands
  std::vector<Movable::Use> made_out;  // results that did not fit on the device
  std::vector<const Block*> fixed;     // other operands and results, which keep their places until the op ends
  // The largest size of the working set, including memory that the op allocates and frees within itself.
  uint64_t most_bytes = 0;
  // While the device is recorded: the op's ticket on the tape, the begin of its kernel, and the fault services before
  // that.
  uint64_t recorded = 0;
  int64_t start_ns = 0, end_ns = 0, serviced_ns = 0;
  int64_t took_ns = UM_UNKNOWN;       // in virtual time
  int64_t compute_ns = 0;             // until now, if times are counted (engine/times.h)
  uint64_t timed = 0;                 // the span of a recorded op
  uint64_t sampled = 0;               // the op's number in the timeline of a sampled step
  const um_shown* outputs = nullptr;  // set when it ends
  uint32_t output_count = 0;
  RunningOp* next_free = nullptr;
};

// The op of this thread; nullptr outside of ops.
inline thread_local RunningOp* running_op = nullptr;
// The stream to which this thread's ops are given.
inline thread_local driver::CUstream op_stream{};

// The contexts that the emulated device stores with events. A context identifies one of the last 256 ops, which
// suffices: events are collected at the end of every op.
class OpContexts {
 public:
  uint64_t begin(const OpIdentity& identity);
  static uint64_t outside(uint32_t step) { return kOutside | step; }
  OpIdentity find(uint64_t context) const;

 private:
  static constexpr uint64_t kRemembered = 256;
  static constexpr uint64_t kOutside = uint64_t{1} << 63;

  uint64_t last_ = 0;
  OpIdentity identities_[kRemembered];
};

}  // namespace um
