#include "replay/swap_victims.h"

#include <limits>

namespace um::simulator {

namespace {

constexpr int64_t kNeverAgain = std::numeric_limits<int64_t>::max() / 2;

}  // namespace

SwapVictims::SwapVictims(const IndexedTrace& trace, Eviction eviction) : trace_(trace), eviction_(eviction) {
  if (!any()) return;
  const um_trace& columns = trace.columns();
  keys_.assign(columns.storage_count, -kNeverAgain);
  if (eviction_ != Eviction::furthest) return;
  first_use_.assign(columns.storage_count, kNeverAgain);
  for (uint64_t row = columns.access_count; row-- > 0;) {
    first_use_[static_cast<size_t>(columns.access_storage[row])] = columns.access_op[row];
  }
  std::vector<int64_t> next(columns.storage_count, kNeverAgain);
  for (int32_t storage = 0; storage < trace.storage_count(); ++storage) {
    const int32_t as = trace.continues_as(storage);
    if (as < 0 || first_use_[static_cast<size_t>(as)] == kNeverAgain) continue;
    next[static_cast<size_t>(storage)] = trace.op_count() + first_use_[static_cast<size_t>(as)];
  }
  next_use_.resize(columns.access_count);
  for (uint64_t end = columns.access_count; end > 0;) {  // op by op: a second access of one op is no next use
    uint64_t begin = end;
    while (begin > 0 && columns.access_op[begin - 1] == columns.access_op[end - 1]) --begin;
    for (uint64_t row = begin; row < end; ++row)
      next_use_[row] = next[static_cast<size_t>(columns.access_storage[row])];
    for (uint64_t row = begin; row < end; ++row)
      next[static_cast<size_t>(columns.access_storage[row])] = columns.access_op[row];
    end = begin;
  }
}

void SwapVictims::used(int32_t storage, int32_t op, uint64_t access) {
  if (eviction_ == Eviction::furthest) set(storage, base_ + next_use_[access]);
  if (eviction_ == Eviction::least_recent) set(storage, -(base_ + op));
}

void SwapVictims::made(int32_t storage, int32_t op) {
  if (eviction_ == Eviction::furthest) set(storage, base_ + (op < 0 ? first_use_[static_cast<size_t>(storage)] : op));
  if (eviction_ == Eviction::least_recent) set(storage, -(base_ + op));
}

void SwapVictims::set(int32_t storage, int64_t key) {
  keys_[static_cast<size_t>(storage)] = key;
  entries_.push({key, storage});
}

void SwapVictims::next_iteration() {
  if (!any()) return;
  base_ += trace_.op_count();
  const std::vector<int64_t> old = keys_;
  entries_ = {};
  for (int32_t storage = 0; storage < trace_.storage_count(); ++storage) {
    const int32_t from = trace_.continued_from(storage);
    if (from >= 0) set(storage, old[static_cast<size_t>(from)]);
  }
}

}  // namespace um::simulator
