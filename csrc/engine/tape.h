// The ops, accesses, allocations and events of a device since the recording began, in order, as the rows of a trace.
//
// A row for which memory is short is dropped and counted in lost(). A recording changes nothing else.
//
// Example: allocate A; op 0 reads A and makes B; free A. The rows are: events [allocate A after op -1, allocate B
// inside op 0, free A after op 0], ops [0], accesses [A in op 0], and outputs [B].
//
// Every call requires the device's lock.
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
  // Forgets all rows. `present`: the live allocations, in order of their serial numbers.
  void start(const std::vector<um_recorded_allocation>& present);
  void stop() { on_ = false; }
  bool on() const { return on_; }

  void allocated(const Block& block, bool inside) noexcept;
  void freed(const Block& block, bool inside) noexcept;
  void labelled(const Block& block) noexcept;
  // Notes that an op used the allocation as a tensor's storage.
  void seen(const Block& block) noexcept;
  // Adds a copy or a fault service. `address` may lie below the block.
  void happened(um_recorded_event_kind kind, const Block& block, uint64_t address, uint64_t bytes,
                bool inside) noexcept;

  void set_step(uint32_t step) noexcept;

  // Returns the ticket for end_op(); 0: nothing is recorded.
  uint64_t begin_op(um_recorded_op op) noexcept;
  void access(const Block& block, uint64_t offset_bytes, const um_access& access) noexcept;
  void end_op(uint64_t ticket, int64_t duration_ns, const std::vector<uint64_t>& outputs) noexcept;
  // Replaces the op's duration by its time on the device's clock.
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
  uint32_t recording_ = 0;  // the number of this recording: an op may begin in one and end in the next
  uint64_t lost_ = 0;
  Rows rows_;
  std::unordered_map<uint64_t, uint64_t> by_serial_;  // serial number -> index of the allocation's row
};

}  // namespace um
