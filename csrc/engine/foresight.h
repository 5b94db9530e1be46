// What comes and leaves ahead of time where no plan does it: where a program has none, where the step has other sizes or
// other ops than the program, and where another program comes next. What is used in the next moments is brought, in the
// order of its uses, as early as the link needs; and where there will be no room for that, or for what is made,
// what is used last begins to leave. Not thread-safe: the device's lock is held, and its context is current.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/mover.h"
#include "engine/pursuit.h"
#include "engine/states.h"

namespace um {

class Foresight {
 public:
  // The step is somewhere else than it was: it looks ahead at once.
  void startle() { due_ns_ = 0; }
  // An op begins. `next`: the program of the step after this one; nullptr: not known.
  void look(const Pursuit& pursuit, const States& states, const Program* next, Mover& mover);

 private:
  // What is found ahead, until the link has enough to do.
  struct Walk {
    double ahead_ns = 0, copies_ns = 0;
    int64_t room = 0;     // chunks
    int64_t ops = 0;      // from the op that begins
    double scale = 1;     // of sizes, to the program's
  };
  struct At {
    const Program* program;
    int32_t op;
    bool this_step;
  };
  bool enough(const Walk& walk) const;
  void take(const At& at, const Pursuit& pursuit, const States& states, Mover& mover, Walk* walk);
  void take_plan(size_t first, size_t end, const At& at, const Pursuit& pursuit, Mover& mover, Walk* walk);
  void make_room(Mover& mover, Walk* walk);

  double due_ns_ = 0;  // until it looks again
};

}  // namespace um
