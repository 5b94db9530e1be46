// A trace with the indexes that an executor needs, and the storages that continue when the step is repeated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "umadvise.h"

namespace um {

constexpr uint8_t kRead = 1, kWrite = 2, kInPlace = 4, kWhole = 8;  // umadvise/records/trace.py, Access
enum EventKind : uint8_t { kAllocate, kFree, kHostWrite, kHostRead, kServiceRead, kServiceWrite };

class IndexedTrace {
 public:
  // Throws um::Error if the columns contradict each other, so that later reads are within bounds.
  explicit IndexedTrace(const um_trace& columns);

  const um_trace& columns() const { return columns_; }
  int32_t op_count() const { return static_cast<int32_t>(columns_.op_count); }
  int32_t storage_count() const { return static_cast<int32_t>(columns_.storage_count); }
  int64_t bytes(int32_t storage) const { return columns_.storage_bytes[storage]; }

  uint64_t first_access(int32_t op) const { return first_access_[static_cast<size_t>(op)]; }
  // Also accepts op -1, whose events precede the first op.
  uint64_t first_event(int32_t op) const { return first_event_[static_cast<size_t>(int64_t{op} + 1)]; }
  bool writes_all(uint64_t access) const {
    return (columns_.access_flags[access] & kWhole) != 0 &&
           columns_.access_bytes[access] == bytes(columns_.access_storage[access]);
  }

  // Returns the storage of this iteration that `storage` continues at the beginning of the next one; -1: it is
  // allocated anew.
  int32_t continued_from(int32_t storage) const { return continued_from_[static_cast<size_t>(storage)]; }
  // Returns the storage of the next iteration that continues `storage`; -1: none.
  int32_t continues_as(int32_t storage) const { return continues_as_[static_cast<size_t>(storage)]; }
  // Returns the storages that an op touches, or that exist only inside of it.
  std::set<int32_t> working_set(int32_t op) const;

 private:
  void check_accesses() const;
  void check_events() const;
  void index_rows();
  void find_continuations();

  const um_trace columns_;
  std::vector<uint64_t> first_access_, first_event_;
  std::vector<int32_t> continued_from_, continues_as_;
};

}  // namespace um
