#include "engine/left_out.h"

#include <cstdlib>
#include <limits>

namespace um {

namespace {

// In a step. Each goes through all ops of the program: in a step that is so unlike it that would take long, and what
// was foreseen does not hold there anyway.
constexpr int kMostLooks = 64;

size_t at(int32_t index) { return static_cast<size_t>(index); }

}  // namespace

void LeftOut::begin(const Program& program) {
  came_.assign(at(program.op_count()), false);
  absent_.clear();
  places_.clear();
  made_bytes_ = 0;
  looks_ = 0;
}

void LeftOut::look_ahead(const Program& program, int32_t op, const std::vector<Block*>& bound) {
  absent_.clear();
  made_bytes_ = 0;
  if (++looks_ > kMostLooks) return;
  now_ = op;
  if (!look_behind(program, op, bound)) return;
  ahead_.assign(at(program.storage_count()), Fate::unknown);
  ops_.assign(at(program.op_count()), Fate::unknown);
  for (int32_t each = op + 1; each < program.op_count(); ++each) settle(program, each, fate_of(program, each));
  absent_.assign(at(program.op_count()), false);
  for (int32_t each = op + 1; each < program.op_count(); ++each) {
    if (ops_[at(each)] == Fate::unknown && program.told(each)) {
      const Fate made = fate_of(program, each);
      settle(program, each, made != Fate::unknown ? made : nearest(program, each));
    }
    absent_[at(each)] = ops_[at(each)] == Fate::absent;
  }
}

// False: all have come.
bool LeftOut::look_behind(const Program& program, int32_t op, const std::vector<Block*>& bound) {
  behind_.assign(at(program.storage_count()), Fate::unknown);
  bool all = true;
  for (int32_t each = 0; each <= op; ++each) {
    const bool came = came_[at(each)] || !program.told(each);
    all = all && came;
    if (!came) made_bytes_ += program.made_bytes(each) - program.made_bytes(each - 1);
    const auto [first, end] = program.arguments(each);
    for (size_t row = first; row < end; ++row) {
      const int32_t storage = program.touched(row);
      if (program.maker(storage) >= 0) continue;
      Fate& fate = behind_[at(storage)];
      if (fate != Fate::comes) fate = came ? Fate::comes : Fate::absent;
    }
    const auto [from, to] = program.results(each);
    for (size_t row = from; row < to; ++row) {
      const int32_t storage = program.touched(row);
      behind_[at(storage)] = came || bound[at(storage)] != nullptr ? Fate::comes : Fate::absent;
    }
  }
  for (const auto& [storage, taken_by] : places_) {
    put(program, storage, taken_by);
    const bool was_made = storage != taken_by && program.maker(taken_by) >= 0;
    if (was_made) behind_[at(taken_by)] = Fate::unknown;  // it was the other one
  }
  return !all;
}

// What both are copies of stands for each other too: a layer's output, of which the next one makes a copy first, and
// what that layer was given.
void LeftOut::put(const Program& program, int32_t storage, int32_t taken_by) {
  behind_[at(storage)] = Fate::comes;
  const int32_t maker = program.maker(storage), other = program.maker(taken_by);
  if (storage == taken_by || maker < 0 || other < 0 || came_[at(maker)]) return;
  if (!program.told(maker) || !program.told(other) || program.signature(maker) != program.signature(other)) return;
  const auto [first, end] = program.arguments(maker);
  if (end - first == 1) put(program, program.touched(first), program.touched(program.arguments(other).first));
}

// By the first of the rules that says something: what ops made, what lasts, what ops ahead make.
LeftOut::Fate LeftOut::fate_of(const Program& program, int32_t op) const {
  const auto [first, end] = program.arguments(op);
  bool made_here = false, made_not = false, used = false, used_not = false, will = false, will_not = false;
  for (size_t row = first; row < end; ++row) {
    const int32_t storage = program.touched(row);
    const Fate behind = behind_[at(storage)], ahead = ahead_[at(storage)];
    const bool lasts = program.maker(storage) < 0;
    made_here = made_here || (!lasts && behind == Fate::comes);
    made_not = made_not || (!lasts && behind == Fate::absent);
    used = used || (lasts && behind == Fate::comes);
    used_not = used_not || (lasts && behind == Fate::absent);
    will = will || ahead == Fate::comes;
    will_not = will_not || ahead == Fate::absent;
  }
  if (made_not) return Fate::absent;
  if (made_here || used) return Fate::comes;
  if (used_not) return Fate::absent;
  if (will) return Fate::comes;
  return will_not ? Fate::absent : Fate::unknown;
}

// Of the ops ahead that are given something of the same that lasts.
LeftOut::Fate LeftOut::nearest(const Program& program, int32_t op) const {
  Fate fate = Fate::comes;
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

void LeftOut::settle(const Program& program, int32_t op, Fate fate) {
  ops_[at(op)] = fate;
  const auto [first, end] = program.results(op);
  for (size_t row = first; row < end; ++row) ahead_[at(program.touched(row))] = fate;
}

}  // namespace um
