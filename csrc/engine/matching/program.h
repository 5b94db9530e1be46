// A recorded step as data: its ops, the storages that they use, and the plan that swaps these storages.
//
// Steps are compared with programs op by op. Sizes do not count, so a step with another sequence length has the same
// program. An op with operands is *matchable*: it has a signature, made of its operator, the number of its operands and
// the serial number of its first persistent operand. A persistent storage is the same allocation in every step, such as
// a parameter. An op without operands, such as `randn`, is compared by its operator alone.
//
// Three kinds of numbers occur: an *op* is an index into the trace's ops, a *position* is an index into
// matchable_ops(), and a *row* is an index into the table of operands and results, uses, events or actions.
//
// Example: the ops are 0 randn(), 1 linear(x, w1), 2 relu(h1), 3 linear(h2, w2). matchable_ops() is {1, 2, 3}, so op 2
// has position 1. Ops 1 and 3 have the same operator but different signatures, because w1 and w2 differ.
//
// Invariants: a program never changes after its construction, and every index in its tables is within bounds. Reading
// it needs no lock. The class Programs owns it, and destroys it under the device's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/indexed_trace.h"

namespace um {

// Returns the signature of an op with `count` operands. `persistent_serial`: the serial number of its first persistent
// operand; 0: the op has none.
uint64_t signature_of(uint32_t op, size_t count, uint64_t persistent_serial);

// Returns whether an action of this kind copies to the device.
bool swaps_in(um_plan_kind kind, int64_t argument);

class Program final {
 public:
  using Rows = std::pair<size_t, size_t>;  // the first row and the end
  struct Action {
    um_plan_kind kind;
    int32_t storage;
    uint64_t offset_bytes, bytes;
    int64_t argument;
  };
  static constexpr size_t kNoRow = ~size_t{0};
  static constexpr int64_t kNever = INT64_MAX;

  // Copies the trace and the plan. Throws um::Error if one of them contradicts itself or the other.
  Program(const um_program& program, uint32_t number, int32_t first_key);

  const uint32_t number;
  const int32_t first_key;  // the key of storage 0: storage s has the key first_key + s (Record::storage)

  // ---- structure ----
  int32_t op_count() const { return trace_.op_count(); }
  int32_t storage_count() const { return trace_.storage_count(); }
  uint32_t name(int32_t op) const { return names_[static_cast<size_t>(op)]; }
  // The ops that have operands, in order. Positions are indices into this list and into signatures().
  const std::vector<int32_t>& matchable_ops() const { return matchable_ops_; }
  bool matchable(int32_t op) const { return first_argument_[at(op)] != first_result_[at(op)]; }
  const std::vector<uint64_t>& signatures() const { return signatures_; }
  // Both functions require a matchable op.
  size_t position_of(int32_t op) const;
  uint64_t signature(int32_t op) const { return signatures_[position_of(op)]; }
  bool uses_persistent(size_t position) const { return uses_persistent_[position]; }
  // Identifies an op across programs that differ in other layers. The name of an op with a persistent operand is made
  // of its signature and of how often that occurred before. The name of any other op is made of its signature, the last
  // op with a persistent operand before it, and how often the signature occurred since.
  uint64_t place_name(size_t position) const { return place_names_[position]; }
  size_t position_of_name(uint64_t place_name) const;  // kNoRow: this program has no such op
  // Equal for programs whose signatures are all equal, in the same order: such programs differ in sizes only.
  uint64_t family() const { return family_; }
  // Returns whether all ops and storages have the same numbers and sizes in both programs.
  bool same_storages(const Program& other) const;
  // Returns the positions that have a signature, ascending.
  const std::vector<size_t>& positions(uint64_t signature) const;
  // An idle op neither touches nor allocates device memory, so a step may run it or not.
  bool idle(int32_t op) const { return idle_[static_cast<size_t>(op)]; }
  // Returns the first op at or after `op` that is not idle; op_count() if there is none.
  int32_t past_idle(int32_t op) const;
  // Rows of touched(): the op's operands in order, and the storages that it makes and returns.
  Rows arguments(int32_t op) const { return {first_argument_[at(op)], first_result_[at(op)]}; }
  Rows results(int32_t op) const { return {first_result_[at(op)], first_argument_[at(op) + 1]}; }
  int32_t touched(size_t row) const { return touched_[row]; }
  int64_t bytes(int32_t storage) const { return trace_.bytes(storage); }
  // Returns the op that allocates a storage; -1: the storage exists before the step or is allocated between ops.
  int32_t maker(int32_t storage) const { return makers_[at(storage)]; }
  // Rows of use(): the ops that use a storage, ascending.
  Rows uses(int32_t storage) const { return {first_use_[at(storage)], first_use_[at(storage) + 1]}; }
  int32_t use(size_t row) const { return uses_[row]; }
  // Returns whether a storage is the same allocation in every step.
  bool persistent(int32_t storage) const { return is_persistent_[at(storage)]; }
  const std::vector<int32_t>& persistent_storages() const { return persistent_storages_; }
  bool has_persistent(uint64_t serial) const { return persistent_serials_.count(serial) > 0; }
  // Returns the serial number of the allocation that a storage is when the step after the recorded one begins; 0: none
  // was known when the program was added.
  uint64_t first_serial(int32_t storage) const { return first_serials_[at(storage)]; }
  int32_t continued_from(int32_t storage) const { return trace_.continued_from(storage); }
  // Rows of allocations and frees within an op and after it, until the next op begins. Op -1 precedes the first one.
  Rows events(int32_t op) const { return {trace_.first_event(op), trace_.first_event(op + 1)}; }
  EventKind event_kind(size_t row) const { return static_cast<EventKind>(columns_.event_kind[row]); }
  int32_t event_storage(size_t row) const { return columns_.event_storage[row]; }
  // Returns the bytes that the ops up to and including this one allocate. Events before the first op do not count.
  int64_t made_bytes(int32_t op) const { return made_bytes_[at(std::max(op, -1) + 1)]; }

  // ---- the plan and recorded times ----
  bool planned() const { return !first_action_.empty(); }
  // Rows of the actions that are anchored before an op, or after it.
  size_t first_action(int32_t op, bool after) const {
    return planned() ? first_action_[at(op) * 2 + (after ? 1 : 0)] : 0;
  }
  size_t end_of_actions(int32_t op, bool after) const {
    return planned() ? first_action_[at(op) * 2 + (after ? 2 : 1)] : 0;
  }
  Action action(size_t row) const;
  bool moves(int32_t storage) const { return planned() && moves_[at(storage)]; }
  // Returns the op before which the plan swaps in the operand in a row of touched(); -1: no swap-in precedes this use.
  int32_t swapped_in_at(size_t row) const { return swapped_in_at_.empty() ? -1 : swapped_in_at_[row]; }
  // Returns whether the plan assumes that a storage is on the device when a step begins.
  bool starts_resident(int32_t storage) const { return starts_resident_.empty() || starts_resident_[at(storage)]; }
  // Returns how many ops after `op` a storage is used next, in this step or the following one. Ops in `skipped` (empty:
  // none) do not count. A storage without further use that is freed in this step counts as used right after that:
  // evicting it would save nothing. kNever: no later use is known.
  int64_t next_use(int32_t storage, int32_t op, const std::vector<bool>& skipped = {}) const;
  int64_t duration_ns(int32_t op) const { return columns_.op_duration_ns[at(op)]; }
  bool knows_link() const { return ns_per_byte_ > 0; }
  double swap_in_ns(uint64_t bytes) const { return static_cast<double>(bytes) * ns_per_byte_; }

 private:
  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  // Owns copies of the columns of um_trace that this class reads.
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
  std::vector<int32_t> persistent_storages_;   // storages whose serial number is known
  std::unordered_set<uint64_t> persistent_serials_;
  const double ns_per_byte_;
  std::vector<size_t> first_argument_, first_result_;  // by op: rows of touched_
  std::vector<int32_t> touched_;                       // storages
  std::vector<int32_t> makers_;                        // by storage: op
  std::vector<bool> idle_;                             // by op
  std::vector<int32_t> matchable_ops_;
  std::vector<uint64_t> signatures_;  // by position
  std::vector<bool> uses_persistent_;
  std::unordered_map<uint64_t, std::vector<size_t>> positions_;  // by signature
  std::vector<uint64_t> place_names_;                            // by position
  std::unordered_map<uint64_t, size_t> position_by_name_;
  uint64_t family_ = 0;
  std::vector<int64_t> made_bytes_;  // by op + 1: entry 0 stands for op -1
  std::vector<size_t> first_use_;    // by storage: rows of uses_
  std::vector<int32_t> uses_;        // ops
  std::vector<int32_t> freed_at_;    // by storage: op; -1: the storage outlives the step
  // The rest is empty without a plan.
  std::vector<size_t> first_action_;           // by op: one entry for before it, one for after it
  std::vector<bool> moves_, starts_resident_;  // by storage
  std::vector<int32_t> swapped_in_at_;         // by row of touched_
  std::vector<int32_t> action_storage_;
  std::vector<uint8_t> action_kind_;
  std::vector<int64_t> action_offset_, action_bytes_, action_argument_;
};

}  // namespace um
