// The op that runs in a thread now, and what events of the past few ops belong to.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/movable.h"
#include "engine/op_identity.h"
#include "umadvise.h"

namespace um {

// An op's own use of managed memory: what it was given, then what it allocated.
class WorkingSet {
 public:
  // Passes over the set until nothing of it moves any more: more than one that fits was ever seen to need, few enough
  // when somebody else keeps taking the device away.
  static constexpr int kMostPasses = 16;

  void clear() { accesses_.clear(), most_pages_ = 0; }
  void add(uint64_t address, uint64_t bytes, bool write);
  void remove(uint64_t address) noexcept;  // an allocation that was freed before the op ended
  const std::vector<um_access>& accesses() const { return accesses_; }
  // Of a 2 MiB page: whether the op writes to it; nothing when it does not use it.
  std::optional<bool> use_of(uint64_t page_address) const;
  // Bytes of the distinct 2 MiB pages, or anything up to `limit_bytes` when it is certain that they are not more.
  uint64_t bytes_if_above(uint64_t limit_bytes) const;

 private:
  std::vector<um_access> accesses_;
  uint64_t most_pages_ = 0;  // sum over the accesses: pages that two of them share count twice
};

// What an op is given: a block, and where in it.
struct Operand {
  Block* block;
  uint64_t offset_bytes;
  const um_access* access;  // as long as the op begins
};

struct RunningOp {
  um_device* device = nullptr;
  OpIdentity identity;
  bool untouched = false;       // UM_OP_CREATES
  bool beside = false;          // UM_OP_BESIDE
  bool at_edge = false;         // UM_OP_AT_EDGE
  bool differentiated = false;  // UM_OP_DIFFERENTIATED
  driver::CUstream stream{};
  WorkingSet working_set;
  std::vector<Movable::Use> swapped;   // memory that may move, pinned for it: first its operands
  size_t swapped_operands = 0;         // how many of those are operands
  std::vector<Movable::Use> made_out;  // what it made that found no room on the device
  std::vector<const Block*> fixed;     // other memory that it was given or has made: it keeps its place until the end
  uint64_t most_bytes = 0;  // what the working set came to at most: what an op makes and frees within itself counts too
  // While the device is recorded: what the tape calls it, when its kernel began, and the fault services before that.
  uint64_t recorded = 0;
  int64_t start_ns = 0, end_ns = 0, serviced_ns = 0;
  int64_t took_ns = UM_UNKNOWN;       // in virtual time
  int64_t compute_ns = 0;             // until now, where that is counted (engine/times.h)
  uint64_t timed = 0;                 // what the device's events around a recorded op are called
  uint64_t sampled = 0;               // what the timeline of a sampled step calls it
  const um_shown* outputs = nullptr;  // when it ends
  uint32_t output_count = 0;
  RunningOp* next_free = nullptr;
};

// The present thread's, nullptr outside ops.
inline thread_local RunningOp* running_op = nullptr;
// What its ops are given to.
inline thread_local driver::CUstream op_stream{};

// The contexts that the emulated device stores with events: a number stands for an op as long as it is one of the last
// few; events are taken out at the end of every op.
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
