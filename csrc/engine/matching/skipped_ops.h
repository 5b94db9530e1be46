// Which ops of a program that are ahead in it will not come, because others of it have not: those of a layer that was
// left out of forward have nothing to do in backward, nor its parameters in the optimizer. Told by what ops are given:
//
// - what an op made that was left out: it will not come, unless something else is in its place; what an op made that
// has
//   come: it will;
// - what lasts from step to step, by whether an op of this step has used it;
// - what ops ahead are to make, by what is known of these;
// - what only others of the optimizer's ops use, by the nearest of them that is known.
//
// Not thread-safe: the device's lock is held.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/matching/program.h"
#include "memory/arena.h"

namespace um {

class SkippedOps {
 public:
  // A step is in this program now; none of its ops has come.
  void begin(const Program& program);
  void note_seen(int32_t op) { seen_[static_cast<size_t>(op)] = true; }
  const std::vector<bool>& seen() const { return seen_; }  // by op
  // An op is given what is the second storage, of this step, where the program's is given the first.
  void note_substitute(int32_t storage, int32_t taken_by) { substitutes_.emplace_back(storage, taken_by); }
  // The step has come to that op by another way than the program's. `bound`: the block of each storage.
  void look_ahead(const Program& program, int32_t op, const std::vector<Block*>& bound);
  bool has(int32_t op) const { return !skipped_.empty() && skipped_[static_cast<size_t>(op)]; }
  const std::vector<bool>& ops() const { return skipped_; }  // empty: all come
  int64_t made_bytes() const { return made_bytes_; }         // by the ops that have not come until now, in the program

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
  // Of look_ahead.
  int32_t now_ = -1;
  std::vector<Fate> behind_, ahead_;  // by storage: what ops until now say of it, and what ops from now on do
  std::vector<Fate> ops_;
};

}  // namespace um
