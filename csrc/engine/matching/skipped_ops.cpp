#include "engine/matching/skipped_ops.h"

#include <cstdlib>
#include <limits>

namespace um {

namespace {

// Bounds the looks in a step, because each visits all ops of the program. In a step that is so unlike its program the
// predictions would not hold anyway.
constexpr int kMostLooks = 64;

size_t at(int32_t index) { return static_cast<size_t>(index); }

}  // namespace

void SkippedOps::begin(const Program& program) {
  seen_.assign(at(program.op_count()), false);
  skipped_.clear();
  substitutes_.clear();
  made_bytes_ = 0;
  looks_ = 0;
}

void SkippedOps::look_ahead(const Program& program, int32_t op, const std::vector<Block*>& bound) {
  skipped_.clear();
  made_bytes_ = 0;
  if (++looks_ > kMostLooks) return;
  now_ = op;
  if (!look_behind(program, op, bound)) return;
  ahead_.assign(at(program.storage_count()), Fate::unknown);
  ops_.assign(at(program.op_count()), Fate::unknown);
  for (int32_t each = op + 1; each < program.op_count(); ++each) set_fate(program, each, fate_of(program, each));
  skipped_.assign(at(program.op_count()), false);
  for (int32_t each = op + 1; each < program.op_count(); ++each) {
    if (ops_[at(each)] == Fate::unknown && program.matchable(each)) {
      const Fate made = fate_of(program, each);
      set_fate(program, each, made != Fate::unknown ? made : nearest(program, each));
    }
    skipped_[at(each)] = ops_[at(each)] == Fate::skipped;
  }
}

// Decides what is known of storages from the ops until `op`. Returns false if all of these have run.
bool SkippedOps::look_behind(const Program& program, int32_t op, const std::vector<Block*>& bound) {
  behind_.assign(at(program.storage_count()), Fate::unknown);
  bool all = true;
  for (int32_t each = 0; each <= op; ++each) {
    const bool seen = seen_[at(each)] || !program.matchable(each);
    all = all && seen;
    if (!seen) made_bytes_ += program.made_bytes(each) - program.made_bytes(each - 1);
    const auto [first, end] = program.arguments(each);
    for (size_t row = first; row < end; ++row) {
      const int32_t storage = program.touched(row);
      if (program.maker(storage) >= 0) continue;
      Fate& fate = behind_[at(storage)];
      if (fate != Fate::runs) fate = seen ? Fate::runs : Fate::skipped;
    }
    const auto [from, to] = program.results(each);
    for (size_t row = from; row < to; ++row) {
      const int32_t storage = program.touched(row);
      behind_[at(storage)] = seen || bound[at(storage)] != nullptr ? Fate::runs : Fate::skipped;
    }
  }
  for (const auto& [storage, taken_by] : substitutes_) {
    mark_present(program, storage, taken_by);
    const bool was_made = storage != taken_by && program.maker(taken_by) >= 0;
    // The allocation was the other storage, so nothing is known of this one.
    if (was_made) behind_[at(taken_by)] = Fate::unknown;
  }
  return !all;
}

// If both storages are results of equal ops with one operand, such as copies, these operands stand for each other too:
// the output of a skipped layer, which the next layer copies first, and the input of the skipped layer.
void SkippedOps::mark_present(const Program& program, int32_t storage, int32_t taken_by) {
  behind_[at(storage)] = Fate::runs;
  const int32_t maker = program.maker(storage), other = program.maker(taken_by);
  if (storage == taken_by || maker < 0 || other < 0 || seen_[at(maker)]) return;
  if (!program.matchable(maker) || !program.matchable(other) || program.signature(maker) != program.signature(other))
    return;
  const auto [first, end] = program.arguments(maker);
  if (end - first == 1) mark_present(program, program.touched(first), program.touched(program.arguments(other).first));
}

// Applies rules 1 to 4 of the header.
SkippedOps::Fate SkippedOps::fate_of(const Program& program, int32_t op) const {
  const auto [first, end] = program.arguments(op);
  bool made_here = false, made_not = false, used = false, used_not = false, will = false, will_not = false;
  for (size_t row = first; row < end; ++row) {
    const int32_t storage = program.touched(row);
    const Fate behind = behind_[at(storage)], ahead = ahead_[at(storage)];
    const bool lasts = program.maker(storage) < 0;
    made_here = made_here || (!lasts && behind == Fate::runs);
    made_not = made_not || (!lasts && behind == Fate::skipped);
    used = used || (lasts && behind == Fate::runs);
    used_not = used_not || (lasts && behind == Fate::skipped);
    will = will || ahead == Fate::runs;
    will_not = will_not || ahead == Fate::skipped;
  }
  if (made_not) return Fate::skipped;
  if (made_here || used) return Fate::runs;
  if (used_not) return Fate::skipped;
  if (will) return Fate::runs;
  return will_not ? Fate::skipped : Fate::unknown;
}

// Applies rule 5: returns the fate of the nearest op ahead with a known fate that uses one of the same lasting
// storages.
SkippedOps::Fate SkippedOps::nearest(const Program& program, int32_t op) const {
  Fate fate = Fate::runs;
  int32_t least = std::numeric_limits<int32_t>::max();
  const auto [first, end] = program.arguments(op);
  for (size_t row = first; row < end; ++row) {
    const int32_t storage = program.touched(row);
    if (program.maker(storage) >= 0) continue;
    const auto [from, to] = program.uses(storage);
    for (size_t use = from; use < to; ++use) {
      const int32_t other = program.use(use), distance = std::abs(other - op);
      if (other <= now_ || distance >= least || ops_[at(other)] == Fate::unknown) continue;
      fate = ops_[at(other)], least = distance;
    }
  }
  return fate;
}

void SkippedOps::set_fate(const Program& program, int32_t op, Fate fate) {
  ops_[at(op)] = fate;
  const auto [first, end] = program.results(op);
  for (size_t row = first; row < end; ++row) ahead_[at(program.touched(row))] = fate;
}

}  // namespace um
