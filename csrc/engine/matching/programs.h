// The programs that a device knows, and where in them an op is that the one followed does not have next. Not
// thread-safe: the device's lock is held.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/matching/program.h"
#include "engine/matching/program_cursor.h"

namespace um {

class Programs {
 public:
  // Throws um::Error.
  const Program& add(const um_program& program);
  // Under the number of the one that it replaces, which is returned: others may still point to it. Throws um::Error.
  std::unique_ptr<const Program> replace(const um_program& program);
  void drop(uint32_t number) noexcept;
  void clear() noexcept;
  bool empty() const { return all_.empty(); }
  const Program* find(uint32_t number) const;

  // The one that a step is to be like, after one of this program (nullptr: none): what followed that last.
  const Program* expected(const Program* before) const;
  void note_step(const Program* before, const Program& now);
  // The one that a step is to be like after one of `before`, unless one has come after that already.
  void expect(const Program* before, const Program& next);

  // Where a cursor's last op is; `program` nullptr: nowhere. `taken_over`: all of the step's ops until now are the
  // program's first ones.
  struct Place {
    const Program* program = nullptr;
    size_t position = 0;
    bool taken_over = false;
  };
  Place seek(const ProgramCursor& cursor) const;
  // Of the followed program's family the one whose ops have made as much until now, or rather more than less; nullptr:
  // the followed one.
  const Program* nearer_in_size(const ProgramCursor& cursor) const;

 private:
  Place same_beginning(const ProgramCursor& cursor) const;
  Place best_place(const Program& program, const ProgramCursor& cursor, size_t* context) const;

  std::vector<std::unique_ptr<Program>> all_;          // in the order in which they came
  std::unordered_map<uint32_t, uint32_t> successors_;  // number -> the one that came after it last
  uint32_t last_number_ = 0;
  int32_t next_key_ = 0;
};

}  // namespace um
