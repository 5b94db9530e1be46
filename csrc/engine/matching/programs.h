// The programs that a device knows, which of them a step is expected to follow, and the search for an op that is not
// the next one of the program that the step follows.
//
// Invariants:
// - Program numbers begin at 1 and are never used again, except that a replacement takes over its predecessor's number.
// - The keys of a program's storages belong to it alone. A replacement with as many storages takes over the keys. The
//   keys begin again at 0 only after about 2^30 have been given out.
// - Pointers to programs stay valid until drop(), clear() or the end of what replace() returns.
//
// Example: a program has three layers of five matchable ops each, at positions 0 to 14, and a step skips the second
// layer. After position 4 the step runs the third layer's first op, `linear(h, w3)`. Its signature occurs at position
// 10 only, and seek() returns that: w3 is persistent, so the ops before need not be equal. An op without a persistent
// operand is found only where at least the two ops before it are equal too.
//
// Not thread-safe: callers hold the device's lock.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/matching/program.h"
#include "engine/matching/program_cursor.h"

namespace um {

class Programs {
 public:
  // Throws um::Error if the program is malformed.
  const Program& add(const um_program& program);
  // Adds a program under the number of the one that it replaces. Returns the old one, because callers may still point
  // to it. Throws um::Error.
  std::unique_ptr<const Program> replace(const um_program& program);
  void drop(uint32_t number) noexcept;
  void clear() noexcept;
  bool empty() const { return all_.empty(); }
  const Program* find(uint32_t number) const;

  // Returns the program that the next step is expected to follow if the last one followed `before` (nullptr: none). It
  // is the one that followed `before` last time, otherwise `before` itself, or else the newest one. nullptr: there is
  // no program.
  const Program* expected(const Program* before) const;
  // Notes that a step which followed `now` ran after one that followed `before`.
  void note_step(const Program* before, const Program& now);
  // Expects `next` after a step that followed `before`, unless it is known already which program that is.
  void expect(const Program* before, const Program& next);

  // The program and position of a step's last op; `program` nullptr: no program has it. `taken_over`: all ops of the
  // step until now are the first ones of that program.
  struct Place {
    const Program* program = nullptr;
    size_t position = 0;
    bool taken_over = false;
  };
  // Searches programs that begin with all of the step's ops, then the cursor's program, then all others.
  Place seek(const ProgramCursor& cursor) const;
  // Returns the program of the same family whose ops have allocated the most similar number of bytes until now. A
  // program that allocates less counts as twice as far away. nullptr: the cursor's own program is the nearest.
  const Program* nearer_in_size(const ProgramCursor& cursor) const;

 private:
  Place same_beginning(const ProgramCursor& cursor) const;
  Place best_place(const Program& program, const ProgramCursor& cursor, size_t* context) const;

  std::vector<std::unique_ptr<Program>> all_;          // the oldest first; a replacement keeps its predecessor's place
  std::unordered_map<uint32_t, uint32_t> successors_;  // number -> number of the program that followed it last
  uint32_t last_number_ = 0;
  int32_t next_key_ = 0;
};

}  // namespace um
