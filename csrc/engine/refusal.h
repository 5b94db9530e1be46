// What an op needs on the device at once, and the words for it where that is more than there is.
#pragma once

#include <cstdint>
#include <string>

namespace um {

// Chunks.
struct Need {
  // What small storages may take that never leave, and the unused rest of the last of them and of the last that is
  // shared: a budget that has as much beside everything else is never too small for them.
  static constexpr uint64_t kConstantBytes = uint64_t{16} << 20;

  uint64_t working = 0;  // what the op is given and has made until now
  uint64_t held = 0;     // what cannot leave beside that, but for small storages
  uint64_t small = 0;    // of small storages that stay
  uint64_t other = 0;    // of the session's memory that is not in chunks, where it shares the budget with them

  uint64_t chunks() const { return working + held + small; }
  uint64_t lasting() const { return working + held + other; }  // without the small storages, which have a constant
};

// The budget that is too small.
struct PresentBudget {
  uint64_t chunks = 0;
  uint64_t chunk_bytes = 0;
  uint64_t session_bytes = 0;  // chunks and the session's other memory together; 0: chunks have all of it

  bool divided() const { return session_bytes > chunks * chunk_bytes; }
};

// Names what the op takes, what stays beside it, and a session's budget that holds both. It exceeds the present budget,
// so a session that follows every refusal ends. The op's results and other ops may need more: they are not known yet.
std::string refusal(const Need& need, const PresentBudget& budget);
// Names the same for the op that needs most in its step, and thereby a budget for the whole step.
std::string refusal_of_step(const Need& need, const PresentBudget& budget);

// Refusals that are put off to the end of their step: what finds no room is used in the host's memory until then, and
// so the step tells what it needs. Device's lock as for all.
class PutOff {
 public:
  void begin() { active_ = true; }
  bool active() const { return active_; }
  // Keeps the op if it needs most until now; `who`: the op in words.
  void note(const Need& need, const std::string& who);
  // The words for the step, and for a budget that holds it; empty: nothing was refused. From now on ops are refused at
  // once.
  std::string end(const PresentBudget& budget);

 private:
  bool active_ = false;
  Need most_;
  std::string who_;
};

}  // namespace um
