// Everything that a device was asked to do since the recording began, in order, so that it can be told as a trace.
// The device's lock is held for every call. A row that memory is out for is lost and counted: recording changes nothing
// else.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "umadvise.h"

namespace um {

class Tape {
 public:
  // Forgets what was recorded. `present`: the live allocations, in order of birth.
  void start(const std::vector<um_recorded_allocation>& present);
  void stop() { on_ = false; }
  bool on() const { return on_; }

  void allocated(const Block& block, bool inside) noexcept;
  void freed(const Block& block, bool inside) noexcept;
  void labelled(const Block& block) noexcept;
  // An op used it as a tensor's storage.
  void seen(const Block& block) noexcept;
  // A copy or a fault service; `address` may lie below the block.
  void happened(um_recorded_event_kind kind, const Block& block, uint64_t address, uint64_t bytes,
                bool inside) noexcept;

  void set_step(uint32_t step) noexcept;

  // Returns what `end_op` must be given; 0 where nothing is recorded.
  uint64_t begin_op(um_recorded_op op) noexcept;
  void access(const Block& block, uint64_t offset_bytes, const um_access& access) noexcept;
  void end_op(uint64_t ticket, int64_t duration_ns, const std::vector<uint64_t>& outputs) noexcept;
  // On the device, by its own clock, whatever the host's says.
  void ran(uint64_t ticket, int64_t duration_ns) noexcept;

  struct Rows {
    std::vector<um_recorded_op> ops;
    std::vector<um_recorded_access> accesses;
    std::vector<uint64_t> outputs;
    std::vector<um_recorded_allocation> allocations;
    std::vector<um_recorded_event> events;
    std::vector<um_recorded_edge> edges;
  };
  const Rows& rows() const { return rows_; }
  uint64_t lost() const { return lost_; }
  void lose(uint64_t count) { lost_ += count; }

 private:
  template <class Change>
  void keep(const Change& change) noexcept;
  um_recorded_allocation* row_of(const Block& block);
  um_recorded_op* op_of(uint64_t ticket);
  int32_t last_op() const { return static_cast<int32_t>(rows_.ops.size()) - 1; }

  bool on_ = false;
  uint32_t recording_ = 0;  // which one: an op may begin in one and end in the next
  uint64_t lost_ = 0;
  Rows rows_;
  std::unordered_map<uint64_t, uint64_t> by_serial_;  // index of an allocation's row
};

}  // namespace um
