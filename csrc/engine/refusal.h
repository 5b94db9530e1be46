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

  uint64_t chunks() const { return working + held + small; }
};

// Of a budget of so many chunks: what the op takes, what stays, and what would do for it.
std::string refusal(const Need& need, uint64_t budget, uint64_t chunk_bytes);
// Likewise, where the op is the one that needs most in its step: what does for that step.
std::string refusal_of_step(const Need& need, uint64_t budget, uint64_t chunk_bytes);

// Refusals that are put off to the end of their step: what finds no room is used in the host's memory until then, and
// so the step tells what it needs. Device's lock as for all.
class PutOff {
 public:
  void begin() { active_ = true; }
  bool active() const { return active_; }
  // An op that needs so much; `who`: in words.
  void note(const Need& need, const std::string& who);
  // The words for the step, and for a budget that holds it; empty: nothing was refused. From now on ops are refused at
  // once.
  std::string end(uint64_t budget, uint64_t chunk_bytes);

 private:
  bool active_ = false;
  Need most_;
  std::string who_;
};

}  // namespace um
