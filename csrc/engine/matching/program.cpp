#include "engine/matching/program.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/scattered.h"

namespace um {

namespace {

template <class Column>
std::vector<Column> copied(const Column* column, uint64_t count) {
  return std::vector<Column>(column, column + count);
}

}  // namespace

bool swaps_in(um_plan_kind kind, int64_t argument) {
  return kind == UM_PLAN_SWAP_IN || (kind == UM_PLAN_PREFETCH && argument == 0);
}

uint64_t signature_of(uint32_t op, size_t count, uint64_t persistent_serial) {
  return scattered((uint64_t{op} << 32 | (count & 0xffffffff)) ^ scattered(persistent_serial));
}

Program::Columns::Columns(const um_trace& trace) {
  const auto copy = [&](auto& column, auto um_trace::* rows, uint64_t um_trace::* count) {
    column = copied(trace.*rows, trace.*count);
    view.*rows = column.data();
    view.*count = trace.*count;
  };
  copy(op_duration_ns, &um_trace::op_duration_ns, &um_trace::op_count);
  copy(storage_bytes, &um_trace::storage_bytes, &um_trace::storage_count);
  copy(storage_successor, &um_trace::storage_successor, &um_trace::storage_count);
  copy(access_op, &um_trace::access_op, &um_trace::access_count);
  copy(access_storage, &um_trace::access_storage, &um_trace::access_count);
  copy(event_op, &um_trace::event_op, &um_trace::event_count);
  copy(event_storage, &um_trace::event_storage, &um_trace::event_count);
  copy(event_kind, &um_trace::event_kind, &um_trace::event_count);
  copy(event_inside, &um_trace::event_inside, &um_trace::event_count);
  // Durations that the trace does not know are negative.
  for (int64_t& duration_ns : op_duration_ns) duration_ns = std::max<int64_t>(duration_ns, 0);
}

Program::Program(const um_program& program, uint32_t its_number, int32_t its_first_key)
    : number(its_number),
      first_key(its_first_key),
      columns_(*program.trace),
      trace_(columns_.view),
      names_(copied(program.op_name, program.trace->op_count)),
      first_serials_(copied(program.first_serials, program.trace->storage_count)),
      is_persistent_(program.state == nullptr
                         ? std::vector<bool>(program.trace->storage_count)
                         : std::vector<bool>(program.state, program.state + program.trace->storage_count)),
      ns_per_byte_(program.h2d_bytes_per_s > 0 ? 1e9 / static_cast<double>(program.h2d_bytes_per_s) : 0),
      idle_(program.trace->op_count, true) {
  for (int32_t storage = 0; storage < storage_count(); ++storage) {
    if (!persistent(storage) || first_serial(storage) == 0) continue;
    persistent_storages_.push_back(storage);
    persistent_serials_.insert(first_serial(storage));
  }
  index_touched();
  index_signatures();
  index_uses();
  sum_made_bytes();
  if (program.plan != nullptr) copy_plan(*program.plan);
  if (planned()) index_swap_ins();
}

// The trace lists an op's accesses to its operands first, then those to the storages that it made and returned.
void Program::index_touched() {
  makers_.assign(is_persistent_.size(), -1);
  for (size_t row = 0; row < columns_.event_kind.size(); ++row) {
    const bool made = columns_.event_kind[row] == kAllocate && columns_.event_inside[row] != 0;
    if (!made) continue;
    makers_[at(columns_.event_storage[row])] = columns_.event_op[row];
    if (columns_.event_op[row] >= 0) idle_[at(columns_.event_op[row])] = false;
  }
  for (int32_t op = 0; op < op_count(); ++op) {
    first_argument_.push_back(touched_.size());
    for (const bool made : {false, true}) {
      if (made) first_result_.push_back(touched_.size());
      for (uint64_t row = trace_.first_access(op); row < trace_.first_access(op + 1); ++row) {
        const int32_t storage = columns_.access_storage[row];
        if ((maker(storage) == op) == made) touched_.push_back(storage);
      }
    }
    if (touched_.size() > first_argument_.back()) idle_[at(op)] = false;
  }
  first_argument_.push_back(touched_.size());
}

void Program::index_signatures() {
  std::unordered_map<uint64_t, uint64_t> seen;
  uint64_t last_persistent = 0;
  for (int32_t op = 0; op < op_count(); ++op) {
    const auto [first, end] = arguments(op);
    if (first == end) continue;
    const auto begin = touched_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto stop = touched_.begin() + static_cast<std::ptrdiff_t>(end);
    const auto found = std::find_if(begin, stop, [&](int32_t storage) { return persistent(storage); });
    matchable_ops_.push_back(op);
    uses_persistent_.push_back(found != stop);
    signatures_.push_back(signature_of(name(op), end - first, found != stop ? first_serial(*found) : 0));
    positions_[signatures_.back()].push_back(matchable_ops_.size() - 1);
    family_ = scattered(family_ ^ signatures_.back());
    const uint64_t after = scattered(signatures_.back() ^ (uses_persistent_.back() ? 0 : last_persistent));
    place_names_.push_back(scattered(after + seen[after]++));
    position_by_name_.emplace(place_names_.back(), matchable_ops_.size() - 1);
    if (uses_persistent_.back()) last_persistent = place_names_.back();
  }
}

size_t Program::position_of_name(uint64_t place_name) const {
  const auto found = position_by_name_.find(place_name);
  return found != position_by_name_.end() ? found->second : kNoRow;
}

bool Program::same_storages(const Program& other) const {
  return family_ == other.family_ && matchable_ops_ == other.matchable_ops_ && touched_ == other.touched_ &&
         columns_.storage_bytes == other.columns_.storage_bytes &&
         columns_.storage_successor == other.columns_.storage_successor;
}

const std::vector<size_t>& Program::positions(uint64_t signature) const {
  static const std::vector<size_t> none;
  const auto found = positions_.find(signature);
  return found != positions_.end() ? found->second : none;
}

void Program::index_uses() {
  std::vector<size_t> counts(is_persistent_.size() + 1);
  for (const int32_t storage : columns_.access_storage) ++counts[at(storage) + 1];
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  first_use_ = counts;
  uses_.resize(columns_.access_storage.size());
  for (size_t row = 0; row < columns_.access_storage.size(); ++row) {  // rows are in the order of ops, so uses_ is too
    uses_[counts[at(columns_.access_storage[row])]++] = columns_.access_op[row];
  }
  freed_at_.assign(is_persistent_.size(), -1);
  for (size_t row = 0; row < columns_.event_kind.size(); ++row) {
    if (event_kind(row) == kFree) freed_at_[at(event_storage(row))] = columns_.event_op[row];
  }
}

void Program::sum_made_bytes() {
  int64_t sum = 0;
  for (int32_t op = -1; op < op_count(); ++op) {
    const auto [first, end] = events(op);
    for (size_t row = first; row < end && op >= 0; ++row) {
      if (event_kind(row) == kAllocate) sum += bytes(event_storage(row));
    }
    made_bytes_.push_back(sum);
  }
}

int32_t Program::past_idle(int32_t op) const {
  while (op < op_count() && idle(op)) ++op;
  return op;
}

// ---- the plan ----------------------------------------------------------------------------------------------------

void Program::copy_plan(const um_plan& plan) {
  int64_t last = 0;
  first_action_.resize(at(op_count()) * 2 + 1);
  for (uint64_t row = 0; row < plan.count; ++row) {
    const int64_t position = int64_t{plan.op[row]} * 2 + (plan.after[row] != 0 ? 1 : 0);
    const bool inside = plan.op[row] >= 0 && plan.op[row] < op_count() && plan.storage[row] >= 0 &&
                        plan.storage[row] < storage_count() && plan.kind[row] <= UM_PLAN_RECOMPUTE;
    const bool whole = inside && plan.offset_bytes[row] >= 0 && plan.bytes[row] >= 0 &&
                       plan.bytes[row] <= bytes(plan.storage[row]) - plan.offset_bytes[row];
    if (!whole || position < last) {
      throw Error(UM_INVALID_ARGUMENT, "action " + std::to_string(row) +
                                           " of the plan: the trace has no such op, storage or bytes, or actions are "
                                           "not in the order of their anchors");
    }
    last = position;
    ++first_action_[static_cast<size_t>(position) + 1];
  }
  std::partial_sum(first_action_.begin(), first_action_.end(), first_action_.begin());
  action_storage_ = copied(plan.storage, plan.count);
  action_kind_ = copied(plan.kind, plan.count);
  action_offset_ = copied(plan.offset_bytes, plan.count);
  action_bytes_ = copied(plan.bytes, plan.count);
  action_argument_ = copied(plan.argument, plan.count);
}

void Program::index_swap_ins() {
  moves_.resize(is_persistent_.size());
  starts_resident_.assign(is_persistent_.size(), true);
  swapped_in_at_.assign(touched_.size(), -1);
  std::vector<int32_t> swapped_in(is_persistent_.size(), -1);
  const auto look_at = [&](size_t first, size_t end, int32_t op) {
    for (size_t row = first; row < end; ++row) {
      const Action each = action(row);
      if (!moves_[at(each.storage)]) starts_resident_[at(each.storage)] = !swaps_in(each.kind, each.argument);
      moves_[at(each.storage)] = true;
      if (swaps_in(each.kind, each.argument)) swapped_in[at(each.storage)] = op;
    }
  };
  for (int32_t op = 0; op < op_count(); ++op) {
    look_at(first_action(op, false), end_of_actions(op, false), op);
    const auto [first, end] = arguments(op);
    for (size_t row = first; row < end; ++row) swapped_in_at_[row] = swapped_in[at(touched_[row])];
    look_at(first_action(op, true), end_of_actions(op, true), op + 1);
  }
}

Program::Action Program::action(size_t row) const {
  return {static_cast<um_plan_kind>(action_kind_[row]), action_storage_[row],
          static_cast<uint64_t>(action_offset_[row]), static_cast<uint64_t>(action_bytes_[row]), action_argument_[row]};
}

size_t Program::position_of(int32_t op) const {
  return static_cast<size_t>(std::lower_bound(matchable_ops_.begin(), matchable_ops_.end(), op) -
                             matchable_ops_.begin());
}

int64_t Program::next_use(int32_t storage, int32_t op, const std::vector<bool>& skipped) const {
  const auto end = uses_.begin() + static_cast<std::ptrdiff_t>(first_use_[at(storage) + 1]);
  auto next = std::upper_bound(uses_.begin() + static_cast<std::ptrdiff_t>(first_use_[at(storage)]), end, op);
  while (next != end && !skipped.empty() && skipped[at(*next)]) ++next;
  if (next != end) return *next - op;
  if (freed_at_[at(storage)] >= op) return freed_at_[at(storage)] - op + 1;
  const int32_t later = trace_.continues_as(storage);
  if (later < 0) return kNever;
  const size_t first = first_use_[at(later)];
  return first == first_use_[at(later) + 1] ? kNever : int64_t{op_count()} - op + uses_[first];
}

}  // namespace um
