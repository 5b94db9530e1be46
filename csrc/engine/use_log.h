// The storages that the last ops used, for comparing two sequences of ops. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace um {

class UseLog {
 public:
  static constexpr uint64_t kMostOps = uint64_t{1} << 16;

  // Begins at this position, and forgets earlier notes. Throws std::bad_alloc.
  void start(uint64_t position);
  // Notes the op at the next position: its operator, and the serial number of its oldest operand.
  void note(uint32_t op, uint64_t serial) noexcept;
  bool holds(uint64_t position) const { return position >= first_ && end_ - position <= kMostOps; }

  struct Likeness {
    bool lasting;  // lasting storages were compared; false: operators, as if each step makes its parameters anew
    double part;   // the share of distinct uses that both sequences have
    size_t uses;   // distinct uses of either sequence
  };
  // Compares the ops from `first` to `second` with those from there until now. Only uses of `lasting` count, which are
  // ascending serial numbers. Throws std::bad_alloc.
  Likeness likeness(uint64_t first, uint64_t second, const std::vector<uint64_t>& lasting) const;

 private:
  struct Use {
    uint64_t serial;
    uint32_t op;
    bool operator<(const Use& other) const { return std::tie(serial, op) < std::tie(other.serial, other.op); }
    bool operator==(const Use& other) const { return serial == other.serial && op == other.op; }
  };
  static constexpr double kLasting = 1.0 / 8;
  // Returns each use once, in order.
  std::vector<Use> uses(uint64_t from, uint64_t to, const std::vector<uint64_t>& lasting) const;
  std::vector<uint32_t> operators(uint64_t from, uint64_t to) const;

  std::vector<Use> ring_;
  uint64_t first_ = 0, end_ = 0;
};

}  // namespace um
