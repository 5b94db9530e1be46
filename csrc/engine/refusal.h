// The device memory that an op needs at once, and the message for an op that needs more than the budget.
#pragma once

#include <cstdint>
#include <string>

namespace um {

// All values are chunks.
struct Need {
  // The most that small storages take, which are never evicted, plus the unused rests of the last chunk of these and of
  // the last shared chunk. A budget that includes this is never too small for them.
  static constexpr uint64_t kConstantBytes = uint64_t{16} << 20;

  uint64_t working = 0;  // of the op's operands and of the results until now
  uint64_t held = 0;     // of other storages that cannot be evicted, except small ones
  uint64_t small = 0;    // of small storages, which are never evicted
  uint64_t other = 0;    // the session's memory outside of chunks, if both share the budget

  uint64_t chunks() const { return working + held + small; }
  uint64_t lasting() const {
    return working + held + other;
  }  // without small storages, for which there is the constant
};

// The budget that an op exceeds.
struct PresentBudget {
  uint64_t chunks = 0;
  uint64_t chunk_bytes = 0;
  uint64_t session_bytes = 0;  // chunks and other memory of the session; 0: chunks only

  bool divided() const { return session_bytes > chunks * chunk_bytes; }
};

// Returns a message with the op's memory, the memory that cannot be evicted beside it, and a session's budget that
// holds both. This budget exceeds the present one, so a session that follows every refusal ends. The op's later results
// and other ops may need more, which is not known yet.
std::string refusal(const Need& need, const PresentBudget& budget);
// Returns the same for the op that needs most in its step, and so a budget for the whole step.
std::string refusal_of_step(const Need& need, const PresentBudget& budget);

// Refusals that are postponed to the end of their step: allocations that do not fit are used in host memory until then,
// so that the step shows how much it needs.
//
// Not thread-safe: callers hold the device's lock.
class PutOff {
 public:
  void begin() { active_ = true; }
  bool active() const { return active_; }
  // Keeps the op if it needs the most until now. `who` describes the op.
  void note(const Need& need, const std::string& who);
  // Returns the message for the step; empty: no op was refused. From now on ops are refused at once.
  std::string end(const PresentBudget& budget);

 private:
  bool active_ = false;
  Need most_;
  std::string who_;
};

}  // namespace um
