#include "engine/step_sums.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace um {

namespace {

// The numbers at the beginning of um_edge that grow from edge to edge: all counters and times, and the swap counters
// that are totals.
constexpr size_t kTotals = (offsetof(um_edge, swaps) + offsetof(um_swap_counters, chunk_bytes)) / sizeof(int64_t);
constexpr size_t kMemory = sizeof(um_memory_stats) / sizeof(int64_t);
static_assert(offsetof(um_edge, times) == sizeof(um_counters) &&
                  offsetof(um_edge, swaps) == sizeof(um_counters) + sizeof(um_spent_time),
              "counters, times and swaps lie side by side");

// Unsigned, because an unknown number (-1) may become known between two edges. Callers ignore its sum.
template <class Edge>
auto* numbers(Edge& edge) {
  if constexpr (std::is_const_v<Edge>)
    return reinterpret_cast<const uint64_t*>(&edge);
  else
    return reinterpret_cast<uint64_t*>(&edge);
}

bool same_subject(const um_residency& one, const um_residency& other) {
  return one.bytes == other.bytes && one.subject == other.subject && one.role == other.role && one.name == other.name &&
         one.birth_op == other.birth_op && one.birth_module == other.birth_module && one.op == other.op &&
         one.module == other.module && one.phase == other.phase;
}

}  // namespace

bool add_step(const um_edge& begun, const um_edge& ended, um_step_sums* sums) {
  um_residency* const rows = sums->rows;
  const um_residency* const added = rows + sums->row_capacity;
  if (sums->row_count > sums->row_capacity) return false;
  if (sums->count > 0 &&
      (sums->row_count != sums->summed_rows || !std::equal(rows, rows + sums->summed_rows, added, same_subject)))
    return false;
  const bool first = sums->count == 0;
  for (size_t i = 0; i < kTotals; ++i) {
    const uint64_t counted = numbers(ended)[i] - numbers(begun)[i];
    numbers(sums->last)[i] = counted;
    numbers(sums->all)[i] = first ? counted : numbers(sums->all)[i] + counted;
  }
  sums->last.at_ns = ended.at_ns - begun.at_ns;
  sums->all.at_ns = first ? sums->last.at_ns : sums->all.at_ns + sums->last.at_ns;
  const auto* const memory = reinterpret_cast<const int64_t*>(&ended.memory);
  auto* const most = reinterpret_cast<int64_t*>(&sums->all.memory);
  for (size_t i = 0; i < kMemory; ++i) most[i] = first ? memory[i] : std::max(most[i], memory[i]);
  for (uint64_t i = 0; i < sums->row_count; ++i) {
    if (first) {
      rows[i] = added[i];
      continue;
    }
    rows[i].peak_bytes = std::max(rows[i].peak_bytes, added[i].peak_bytes);
    rows[i].compute_ns += added[i].compute_ns;
  }
  sums->summed_rows = sums->row_count;
  ++sums->count;
  return true;
}

}  // namespace um
