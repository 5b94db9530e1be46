// A step that may come again, as data: its ops, told by what they are and whom they are given, and the plan for it.
//
// Sizes tell nothing: a step of other sizes is the same one. An op is told by its operator, by how many operands it is
// given, and by the first of these that is the same allocation in every step (a parameter, an optimizer's state).
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/indexed_trace.h"

namespace um {

// Of an op's operator, the number of its operands, and the serial number of the first that every step has; 0: none.
uint64_t signature_of(uint32_t op, size_t count, uint64_t persistent_serial);

// An action of that kind: a copy to the device.
bool swaps_in(um_plan_kind kind, int64_t argument);

class Program final {
 public:
  using Rows = std::pair<size_t, size_t>;  // from the first to the end
  struct Action {
    um_plan_kind kind;
    int32_t storage;
    uint64_t offset_bytes, bytes;
    int64_t argument;
  };
  static constexpr size_t kNoRow = ~size_t{0};
  static constexpr int64_t kNever = INT64_MAX;

  // Copies everything. Throws um::Error when it is none. `number`: told of no other one.
  Program(const um_program& program, uint32_t number, int32_t first_key);

  const uint32_t number;
  const int32_t first_key;  // storages are called by their numbers from here on (Record::storage)

  // ---- structure ----
  int32_t op_count() const { return trace_.op_count(); }
  int32_t storage_count() const { return trace_.storage_count(); }
  uint32_t name(int32_t op) const { return names_[static_cast<size_t>(op)]; }
  // Of the ops that are given something, in order: what they are called here, and what tells them.
  const std::vector<int32_t>& matchable_ops() const { return matchable_ops_; }
  bool matchable(int32_t op) const { return first_argument_[at(op)] != first_result_[at(op)]; }
  const std::vector<uint64_t>& signatures() const { return signatures_; }
  size_t position_of(int32_t op) const;                                          // of one that is told
  uint64_t signature(int32_t op) const { return signatures_[position_of(op)]; }  // of one that is told
  bool uses_persistent(size_t position) const { return uses_persistent_[position]; }
  // What tells an op, an index of matchable_ops(), in all programs with this part of it, whatever other layers they
  // have: its signature, the last op on a state before it, and how often it came since.
  uint64_t place_name(size_t position) const { return place_names_[position]; }
  size_t position_of_name(uint64_t place_name) const;  // kNoRow: none
  uint64_t family() const { return family_; }          // equal where all signatures are
  // Its ops and storages are called the same here and there.
  bool same_storages(const Program& other) const;
  // Of a signature, ascending: indices of matchable_ops().
  const std::vector<size_t>& positions(uint64_t signature) const;
  // It touches nothing of the device.
  bool idle(int32_t op) const { return idle_[static_cast<size_t>(op)]; }
  int32_t past_idle(int32_t op) const;  // the first op from here on that must come
  // Storages that an op is given, in order, and that it makes and returns.
  Rows arguments(int32_t op) const { return {first_argument_[at(op)], first_result_[at(op)]}; }
  Rows results(int32_t op) const { return {first_result_[at(op)], first_argument_[at(op) + 1]}; }
  int32_t touched(size_t row) const { return touched_[row]; }
  int64_t bytes(int32_t storage) const { return trace_.bytes(storage); }
  int32_t maker(int32_t storage) const { return makers_[at(storage)]; }  // the op; -1: none
  // The ops that a storage is used by, ascending.
  Rows uses(int32_t storage) const { return {first_use_[at(storage)], first_use_[at(storage) + 1]}; }
  int32_t use(size_t row) const { return uses_[row]; }
  // The same allocation in every step.
  bool persistent(int32_t storage) const { return is_persistent_[at(storage)]; }
  const std::vector<int32_t>& persistent_storages() const { return persistent_storages_; }
  bool has_persistent(uint64_t serial) const { return persistent_serials_.count(serial) > 0; }
  // The allocation that it is when a step begins, as far as that was known; 0: none.
  uint64_t first_serial(int32_t storage) const { return first_serials_[at(storage)]; }
  int32_t continued_from(int32_t storage) const { return trace_.continued_from(storage); }
  // What is allocated and freed within an op and after it, until the next one begins.
  Rows events(int32_t op) const { return {trace_.first_event(op), trace_.first_event(op + 1)}; }
  EventKind event_kind(size_t row) const { return static_cast<EventKind>(columns_.event_kind[row]); }
  int32_t event_storage(size_t row) const { return columns_.event_storage[row]; }
  int64_t made_bytes(int32_t op) const {
    return made_bytes_[at(std::max(op, -1) + 1)];
  }  // by the ops to this one, that included

  // ---- the plan, and what the trace says of times ----
  bool planned() const { return !first_action_.empty(); }
  // Rows of the actions from one op's beginning (before it) on, and of those after an op.
  size_t first_action(int32_t op, bool after) const {
    return planned() ? first_action_[at(op) * 2 + (after ? 1 : 0)] : 0;
  }
  size_t end_of_actions(int32_t op, bool after) const {
    return planned() ? first_action_[at(op) * 2 + (after ? 2 : 1)] : 0;
  }
  Action action(size_t row) const;
  bool moves(int32_t storage) const { return planned() && moves_[at(storage)]; }
  // The op for which the plan brings what is touched in a row of arguments; -1: it has it there.
  int32_t swapped_in_at(size_t row) const { return swapped_in_at_.empty() ? -1 : swapped_in_at_[row]; }
  // Whether the plan has a storage on the device before its first action on it.
  bool starts_resident(int32_t storage) const { return starts_resident_.empty() || starts_resident_[at(storage)]; }
  // In ops from `op` on but for those left out (empty: none), into the next step if need be; of what is not used any
  // more, when it is freed: then it need not leave. kNever: not that is known.
  int64_t next_use(int32_t storage, int32_t op, const std::vector<bool>& skipped = {}) const;
  int64_t duration_ns(int32_t op) const { return columns_.op_duration_ns[at(op)]; }
  bool knows_link() const { return ns_per_byte_ > 0; }
  double swap_in_ns(uint64_t bytes) const { return static_cast<double>(bytes) * ns_per_byte_; }

 private:
  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  // um_trace's columns, as far as they are looked at.
  struct Columns {
    explicit Columns(const um_trace& trace);
    um_trace view{};
    std::vector<int64_t> storage_bytes, op_duration_ns;
    std::vector<int32_t> storage_successor, access_op, access_storage, event_op, event_storage;
    std::vector<uint8_t> event_kind, event_inside;
  };

  void index_touched();
  void index_signatures();
  void index_uses();
  void sum_made_bytes();
  void copy_plan(const um_plan& plan);
  void index_swap_ins();

  const Columns columns_;
  const IndexedTrace trace_;
  const std::vector<uint32_t> names_;          // by op
  const std::vector<uint64_t> first_serials_;  // by storage
  const std::vector<bool> is_persistent_;      // by storage
  std::vector<int32_t> persistent_storages_;   // storages
  std::unordered_set<uint64_t> persistent_serials_;
  const double ns_per_byte_;
  std::vector<size_t> first_argument_, first_result_;  // by op: into touched_
  std::vector<int32_t> touched_;                       // storages
  std::vector<int32_t> makers_;                        // by storage: op
  std::vector<bool> idle_;                             // by op
  std::vector<int32_t> matchable_ops_;
  std::vector<uint64_t> signatures_;
  std::vector<bool> uses_persistent_;
  std::unordered_map<uint64_t, std::vector<size_t>> positions_;
  std::vector<uint64_t> place_names_;
  std::unordered_map<uint64_t, size_t> position_by_name_;
  uint64_t family_ = 0;
  std::vector<int64_t> made_bytes_;  // by op, and what is made before the first
  std::vector<size_t> first_use_;    // by storage: into uses_
  std::vector<int32_t> uses_;        // ops
  std::vector<int32_t> freed_at_;    // by storage: op; -1: it goes on
  // Empty without a plan.
  std::vector<size_t> first_action_;           // by op, before it and after it
  std::vector<bool> moves_, starts_resident_;  // by storage
  std::vector<int32_t> swapped_in_at_;         // as touched_
  std::vector<int32_t> action_storage_;
  std::vector<uint8_t> action_kind_;
  std::vector<int64_t> action_offset_, action_bytes_, action_argument_;
};

}  // namespace um
