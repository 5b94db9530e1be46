// Predicts which ops ahead will not run in a step, because ops before them did not run. If forward skips a layer, the
// layer's backward ops and the updates of its parameters do not run either. Plans then swap nothing in for them.
//
// A storage that no op of the program makes, such as a parameter, is called lasting here. The first rule that applies
// to an op's operands decides its fate:
// 1. An operand was to be made by an op that has been skipped, and no allocation took its place: the op is skipped.
// 2. An operand was made by an op that ran, or is lasting and was used by an op that ran: the op runs.
// 3. A lasting operand was to be used until now by skipped ops only: the op is skipped.
// 4. An operand is made by an op ahead: the op runs if one of these runs, and is skipped if all that are known are.
// 5. Otherwise the fate is that of the nearest op ahead that uses one of the same lasting storages; the op runs if
//    there is none.
//
// Example: op 4 = linear(h, w1) makes s9, op 20 = linear_backward(g, s9) makes s30, op 40 = sgd_(w1, s30). A step goes
// from op 3 to op 5. Rule 1 skips op 20, because s9 was not made. Rule 3 skips op 40, because until op 5 only op 4 was
// to use w1.
//
// Invariants: has() is true only for ops after the one that look_ahead() was called for last. A step looks ahead at
// most 64 times, because each time visits all ops; after that no op counts as skipped.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/matching/program.h"
#include "memory/arena.h"

namespace um {

class SkippedOps {
 public:
  // A step begins to follow this program: no op has run.
  void begin(const Program& program);
  void note_seen(int32_t op) { seen_[static_cast<size_t>(op)] = true; }
  const std::vector<bool>& seen() const { return seen_; }  // by op: whether it ran in this step
  // An op of this step is given storage `taken_by` where the program's op is given `storage`.
  void note_substitute(int32_t storage, int32_t taken_by) { substitutes_.emplace_back(storage, taken_by); }
  // Predicts the ops after `op`, which the step has reached in another way than the program. `bound`: the block of each
  // storage, or nullptr.
  void look_ahead(const Program& program, int32_t op, const std::vector<Block*>& bound);
  bool has(int32_t op) const { return !skipped_.empty() && skipped_[static_cast<size_t>(op)]; }
  const std::vector<bool>& ops() const { return skipped_; }  // by op; empty: no op is skipped
  // Returns the bytes that the program's skipped ops until now would have allocated.
  int64_t made_bytes() const { return made_bytes_; }

 private:
  enum class Fate : uint8_t { unknown, runs, skipped };
  bool look_behind(const Program& program, int32_t op, const std::vector<Block*>& bound);
  void mark_present(const Program& program, int32_t storage, int32_t taken_by);
  Fate fate_of(const Program& program, int32_t op) const;
  Fate nearest(const Program& program, int32_t op) const;
  void set_fate(const Program& program, int32_t op, Fate fate);

  std::vector<bool> seen_, skipped_;  // by op
  std::vector<std::pair<int32_t, int32_t>> substitutes_;
  int64_t made_bytes_ = 0;
  int looks_ = 0;
  // look_ahead() uses these while it runs.
  int32_t now_ = -1;
  // `behind_` tells for each storage whether an op until now made it or, if it is lasting, used it. `ahead_` has the
  // fate of the op ahead that makes each storage.
  std::vector<Fate> behind_, ahead_;
  std::vector<Fate> ops_;  // by op
};

}  // namespace um
