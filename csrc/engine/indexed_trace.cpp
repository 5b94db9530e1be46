#include "engine/indexed_trace.h"

#include <limits>
#include <set>

#include "base/error.h"

namespace um {

namespace {

bool within(int64_t value, int64_t low, uint64_t count) { return value >= low && value < static_cast<int64_t>(count); }

}  // namespace

IndexedTrace::IndexedTrace(const um_trace& columns) : columns_(columns) {
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max() - 1;
  require(columns.storage_count < kMost && columns.op_count < kMost,
          "this is no trace: it has more rows than indexes can name");
  for (uint64_t row = 0; row < columns.storage_count; ++row) {
    require(columns.storage_bytes[row] >= 0, "this is no trace: a storage of less than no bytes");
    require(within(columns.storage_successor[row], -1, columns.storage_count),
            "this is no trace: an unknown successor");
  }
  check_accesses();
  check_events();
  index_rows();
  find_continuations();
}

void IndexedTrace::check_accesses() const {
  int32_t last = 0;
  for (uint64_t row = 0; row < columns_.access_count; ++row) {
    const int32_t op = columns_.access_op[row];
    require(op >= last && within(op, 0, columns_.op_count),
            "this is no trace: accesses are not in the order of the ops");
    require(within(columns_.access_storage[row], 0, columns_.storage_count),
            "this is no trace: an access to an unknown storage");
    last = op;
  }
}

void IndexedTrace::check_events() const {
  int64_t last = -1;
  for (uint64_t row = 0; row < columns_.event_count; ++row) {
    const int32_t op = columns_.event_op[row];
    const int64_t position = int64_t{op} * 2 + (columns_.event_inside[row] != 0 ? 0 : 1);
    require(within(op, -1, columns_.op_count) && position >= last,
            "this is no trace: events are not in the order of the ops");
    require(within(columns_.event_storage[row], 0, columns_.storage_count),
            "this is no trace: an event of an unknown storage");
    last = position;
  }
}

void IndexedTrace::index_rows() {
  first_access_.reserve(columns_.op_count + 1);
  first_event_.reserve(columns_.op_count + 2);
  uint64_t access = 0, event = 0;
  first_event_.push_back(0);
  for (int64_t op = 0; op <= static_cast<int64_t>(columns_.op_count); ++op) {
    while (access < columns_.access_count && columns_.access_op[access] < op) ++access;
    while (event < columns_.event_count && columns_.event_op[event] < op) ++event;
    first_access_.push_back(access);
    first_event_.push_back(event);
  }
}

void IndexedTrace::find_continuations() {
  const size_t count = columns_.storage_count;
  std::vector<uint8_t> from_before(count), dies(count);
  for (uint64_t row = 0; row < columns_.event_count; ++row) {
    const auto storage = static_cast<size_t>(columns_.event_storage[row]);
    if (columns_.event_kind[row] == kAllocate) from_before[storage] = columns_.event_op[row] < 0;
    if (columns_.event_kind[row] == kFree) dies[storage] = 1;
  }
  continued_from_.assign(count, -1);
  continues_as_.assign(count, -1);
  for (size_t storage = 0; storage < count; ++storage) {
    if (!from_before[storage]) continue;
    const int32_t source = dies[storage] ? columns_.storage_successor[storage] : static_cast<int32_t>(storage);
    if (source < 0 || dies[static_cast<size_t>(source)]) continue;
    if (dies[storage] && from_before[static_cast<size_t>(source)]) continue;  // the source continues as itself
    continued_from_[storage] = source;
    continues_as_[static_cast<size_t>(source)] = static_cast<int32_t>(storage);
  }
}

std::set<int32_t> IndexedTrace::working_set(int32_t op) const {
  std::set<int32_t> storages;
  if (op >= 0) {
    for (uint64_t row = first_access(op); row < first_access(op + 1); ++row) {
      storages.insert(columns_.access_storage[row]);
    }
  }
  for (uint64_t row = first_event(op); row < first_event(op + 1); ++row) {
    if ((columns_.event_inside[row] != 0 || op < 0) && columns_.event_kind[row] == kAllocate) {
      storages.insert(columns_.event_storage[row]);
    }
  }
  return storages;
}

}  // namespace um
