// Learns from an operator's runs whether its nested calls make tensors that outlive the op.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace um::hooks {

// Runs are distinguished by their situation: the conditions for autograd's decision to clone an operand. A situation is
// watched until two runs in a row have kept nothing, and again once a run has kept something.
//
// Example: `mul_` clones its first operand if the second one needs a gradient, and only then. The former situation is
// watched in every run, the latter in two runs.
//
// Thread-safe.
class NestedHistory {
 public:
  static constexpr uint32_t kSituations = 17;

  bool watches(uint32_t situation) const { return quiet_[situation].load(std::memory_order_relaxed) < kQuietRuns; }
  void note(uint32_t situation, bool kept) {
    std::atomic<uint8_t>& quiet = quiet_[situation];
    const uint8_t before = quiet.load(std::memory_order_relaxed);
    const uint8_t after = kept ? 0 : before < kQuietRuns ? before + 1 : before;
    if (after != before) quiet.store(after, std::memory_order_relaxed);
  }

 private:
  static constexpr uint8_t kQuietRuns = 2;
  std::array<std::atomic<uint8_t>, kSituations> quiet_{};
};

}  // namespace um::hooks
