// Which storages the last ops used, to tell whether one stretch of ops is like another. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace um {

class UseLog {
 public:
  static constexpr uint64_t kMostOps = uint64_t{1} << 16;

  // From this position on; what was noted is forgotten. Throws std::bad_alloc.
  void start(uint64_t position);
  // The op at the position that follows: its operator, and the serial of the oldest of what it is given.
  void note(uint32_t op, uint64_t serial) noexcept;
  bool holds(uint64_t position) const { return position >= first_ && end_ - position <= kMostOps; }

  struct Likeness {
    bool lasting;  // what is used lasts: else operators are compared, as where each step makes the parameters anew
    double part;   // of the distinct uses of both stretches: what both have
    size_t uses;   // in all
  };
  // Of the ops from `first` to `second` and from there until now. Only uses of these storages count, whose serials are
  // in order. Throws std::bad_alloc.
  Likeness likeness(uint64_t first, uint64_t second, const std::vector<uint64_t>& lasting) const;

 private:
  struct Use {
    uint64_t serial;
    uint32_t op;
    bool operator<(const Use& other) const { return std::tie(serial, op) < std::tie(other.serial, other.op); }
    bool operator==(const Use& other) const { return serial == other.serial && op == other.op; }
  };
  static constexpr double kLasting = 1.0 / 8;
  // Each once, in order.
  std::vector<Use> uses(uint64_t from, uint64_t to, const std::vector<uint64_t>& lasting) const;
  std::vector<uint32_t> operators(uint64_t from, uint64_t to) const;

  std::vector<Use> ring_;
  uint64_t first_ = 0, end_ = 0;
};

}  // namespace um
