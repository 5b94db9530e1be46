#include "cupti/records.h"

#include <unistd.h>

#include <cstring>

namespace um::cupti {
namespace {

using Record = CUpti_ActivityUnifiedMemoryCounter2;

// Times beyond what 63 bits hold are no times.
int64_t time_of(uint64_t ns) { return ns <= uint64_t{INT64_MAX} ? static_cast<int64_t>(ns) : 0; }

bool known(const Record& record) {
  return record.counterKind >= CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD &&
         record.counterKind <= CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOD;
}

}  // namespace

Batch read_buffer(const Library& library, uint8_t* buffer, size_t valid_bytes) {
  Batch batch;
  const uint32_t process = static_cast<uint32_t>(getpid());
  const uint8_t* before = nullptr;
  CUpti_Activity* next = nullptr;
  while (true) {
    const CUptiResult result = library.get_next_record(buffer, valid_bytes, &next);
    if (result != CUPTI_SUCCESS) {
      batch.whole = batch.whole && result == CUPTI_ERROR_MAX_LIMIT_REACHED;
      return batch;
    }
    const uint8_t* const at = reinterpret_cast<const uint8_t*>(next);
    // A library that goes astray is not followed: forward, within the buffer, and with the whole of what is read.
    const bool inside = at >= buffer && at + sizeof(CUpti_Activity) <= buffer + valid_bytes;
    if (!inside || (before != nullptr && at <= before)) {
      batch.whole = false;
      return batch;
    }
    before = at;
    CUpti_Activity header{};
    std::memcpy(&header, at, sizeof(header));
    if (header.kind != CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) {
      ++batch.ignored;
      continue;
    }
    if (static_cast<size_t>(buffer + valid_bytes - at) < sizeof(Record)) {
      batch.whole = false;
      return batch;
    }
    Record record{};
    std::memcpy(&record, at, sizeof(record));
    if (!known(record) || record.processId != process) {
      ++batch.ignored;
      continue;
    }
    batch.samples.push_back(
        {time_of(record.start), time_of(record.end), record.address, record.value, record.counterKind, record.flags});
  }
}

}  // namespace um::cupti
